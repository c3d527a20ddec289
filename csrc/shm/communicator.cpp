#include "shm/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "shm/monitored_barrier.h"

namespace ringcomm {
namespace {

// Whoever leaves waits so long for what it has sent to be on its way to other hosts.
constexpr std::chrono::milliseconds kLastMail{1000};

constexpr std::size_t kMostAtOnce = 512 << 10;  // bytes
// Ranks. Every one more takes two slots of each outbox, and slices become shorter.
constexpr int kMostDirect = 16;

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 44;  // that any host has memory for

const Invitation& checked(const Invitation& invitation) {
  const int rank = invitation.rank, world_size = invitation.world_size;
  if (world_size < 1) {
    throw Error(ErrorKind::kInvalidArgument,
                "world_size is " + std::to_string(world_size) + "; it must be at least 1");
  }
  if (rank < 0 || rank >= world_size) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank is " + std::to_string(rank) +
                    "; it must be 0 to world_size - 1 = " + std::to_string(world_size - 1));
  }
  return invitation;
}

Invitation tuned(Invitation invitation, const Selection& selection) {
  invitation.tuned = tuned_for(invitation.world_size, selection.tuned);
  return invitation;
}

}  // namespace

Communicator::Communicator(Store& store, const Invitation& invitation, const Selection& selection,
                           const links::MakeEngine& make_engine)
    : Collectives(invitation.rank, checked(invitation).world_size, selection),
      group_(store, tuned(invitation, selection), make_engine),
      exchange_(group_),
      executor_(group_),
      mail_(group_) {
  if (group_.links() != nullptr) {
    place(group_.placement());
  } else {
    tune(group_.segment().tuned());
  }
}

void Communicator::close(const std::string& reason) { close(reason, shm::Closed::kLeft); }

void Communicator::refuse(const std::string& reason, Timeout timeout) {
  exchange_.refuse(reason, Deadline::in(timeout));
}

void Communicator::abort(const std::string& reason) {
  group_.fail(ErrorKind::kClosed, reason);
  close(reason, shm::Closed::kAborted);
}

void Communicator::close(const std::string& reason, shm::Closed how) {
  if (how == shm::Closed::kLeft && !group_.broken()) mail_.drain(kLastMail);
  group_.close(reason, how);
  mail_.close(reason);
}

void Communicator::monitored_barrier(bool wait_all_ranks, Timeout timeout) {
  shm::monitored_barrier(group_, ++barriers_, wait_all_ranks, Deadline::in(timeout));
}

// Floats of 16 and 8 bits lose a little with every rounding, and a direct plan rounds once where a
// ring rounds at every hop. The rest is by measurement, on one host.
Collectives::Way Communicator::way_of(Collective collective, std::size_t count, DType dtype) const {
  const bool is_on_one_host = group_.placement().num_hosts() == 1;
  // Two ranks move as much either way, and wait for each other once less.
  const bool is_small = count * element_size(dtype) <= kMostAtOnce;
  if (collective == Collective::kAllReduce && world_size() == 2 && is_small && is_on_one_host) {
    return Way::kAtOnce;
  }
  const bool waits_less = collective == Collective::kAllReduce ||
                          collective == Collective::kAllGather ||
                          collective == Collective::kReduceScatter;
  const bool is_faster = waits_less && world_size() <= kMostDirect && is_on_one_host;
  return element_size(dtype) < 4 || is_faster ? Way::kDirect : Way::kByNeighbours;
}

shm::Eager& Communicator::eager_way(const Call& call) {
  const auto key = std::make_pair(call.collective, call.root);
  const auto known = eager_.find(key);
  if (known != eager_.end()) return known->second;
  return eager_
      .try_emplace(key, call.collective, world_size(), static_cast<int>(blocks().size()),
                   std::max(call.root, 0), rank())
      .first->second;
}

void Communicator::carry_out(Call call, const Reduction& reduction, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  if (call.collective == Collective::kAllToAll)
    return carry_out_all_to_all(call, reduction, deadline);
  if (call.algorithm != kUsersPlans) {
    shm::Eager& eager = eager_way(call);
    if (eager.fits(blocks(), group_.geometry().eager_nbytes / element_size(call.dtype))) {
      return eagerly(eager, call, reduction, deadline);
    }
  }
  by_plan(call, reduction, deadline);
}

void Communicator::eagerly(shm::Eager& eager, Call& call, const Reduction& reduction,
                           const Deadline& deadline) {
  std::byte* payload = exchange_.begin(call, deadline);
  exchange_.announce(call, eager.write(blocks(), reduction, payload));
  exchange_.await_all(deadline);
  eager.read(blocks(), reduction, exchange_);
  exchange_.end();
}

const Program& Communicator::program(Call& call, std::exception_ptr& refusal) {
  const Prepared& found = prepared(call);
  refusal = found.error;
  if (!refusal) {
    try {
      executor_.check_fits(found.program);
    } catch (const Error&) {
      refusal = std::current_exception();
    }
  }
  call.plan = refusal ? Prepared::kNoProgram : found.fingerprint;
  return found.program;
}

// Where only some ranks' plans are refused the calls differ, and these say why.
void Communicator::await_all(const std::exception_ptr& refusal, const Deadline& deadline) {
  try {
    exchange_.await_all(deadline);
  } catch (const Error& error) {
    if (refusal && error.kind() == ErrorKind::kMismatch) std::rethrow_exception(refusal);
    throw;
  }
}

void Communicator::by_plan(Call& call, const Reduction& reduction, const Deadline& deadline) {
  std::exception_ptr refusal;
  const Program& program = this->program(call, refusal);
  group_.use(shm::Area::kOutboxes);
  exchange_.begin(call, deadline);
  exchange_.announce(call);
  await_all(refusal, deadline);
  if (!refusal) {
    executor_.run(program, chunks(call, program.num_chunks), reduction, call, deadline);
  }
  exchange_.end();
  if (refusal) std::rethrow_exception(refusal);
}

// Every payload begins with two counts per rank: what this rank sends it, and what it expects from
// it. Whether the data follows is each rank's own choice, made by its own total; what did not
// travel that way goes by plan, in which the rest has no elements.
void Communicator::carry_out_all_to_all(Call& call, const Reduction& reduction,
                                        const Deadline& deadline) {
  const std::size_t n = world_size();
  const std::size_t own = rank();
  const std::size_t element_nbytes = element_size(call.dtype);
  const std::size_t table_nbytes = 2 * n * sizeof(std::uint64_t);
  std::exception_ptr refusal;
  const Program& program = this->program(call, refusal);

  std::byte* payload = exchange_.begin(call, deadline);
  counts_.assign(2 * n * n, 0);
  std::uint64_t* counts = &counts_[2 * n * own];
  std::size_t total = 0;
  for (std::size_t r = 0; r < n; ++r) {
    total += counts[r] = blocks()[own * n + r].count;
    counts[n + r] = blocks()[r * n + own].count;
  }
  call.count = total;
  std::memcpy(payload, counts, table_nbytes);
  const std::size_t most = (group_.geometry().eager_nbytes - table_nbytes) / element_nbytes;
  call.eager = call.algorithm != kUsersPlans && total <= most;
  std::size_t payload_nbytes = table_nbytes;
  if (call.eager) {
    payload_nbytes += eager_way(call).write(blocks(), reduction, payload + table_nbytes);
  }
  exchange_.announce(call, payload_nbytes);
  await_all(refusal, deadline);
  for (std::size_t r = 0; r < n; ++r) {
    if (r != own) std::memcpy(&counts_[2 * n * r], exchange_.payload_of(r), table_nbytes);
  }
  check_counts(call);

  bool all_eager = true;
  for (std::size_t from = 0; from < n; ++from) {
    const std::uint64_t* theirs = &counts_[2 * n * from];
    const bool eager = from == own ? call.eager : exchange_.call_of(from).eager != 0;
    all_eager = all_eager && eager;
    if (eager) {
      check_sum(call, from, theirs, most);
      const std::size_t before = std::accumulate(theirs, theirs + own, std::uint64_t{0});
      const Chunk& block = blocks()[from * n + own];
      if (block.count > 0) {
        std::memcpy(block.output,
                    exchange_.payload_of(from) + table_nbytes + before * element_nbytes,
                    block.count * element_nbytes);
      }
    }
    for (std::size_t to = 0; to < n; ++to) {
      blocks()[from * n + to].count = eager ? 0 : theirs[to];
    }
  }
  if (!all_eager && !refusal) {
    group_.use(shm::Area::kOutboxes);
    executor_.run(program, chunks(call, program.num_chunks), reduction, call, deadline);
  }
  exchange_.end();
  if (refusal) std::rethrow_exception(refusal);
}

void Communicator::check_counts(const Call& call) {
  const std::size_t n = world_size();
  std::string disagreements;
  for (std::size_t from = 0; from < n; ++from) {
    check_sum(call, from, &counts_[2 * n * from], kMostElements);
    for (std::size_t to = 0; to < n; ++to) {
      const std::uint64_t sent = counts_[2 * n * from + to];
      const std::uint64_t expected = counts_[2 * n * to + n + from];
      if (sent == expected) continue;
      if (!disagreements.empty()) disagreements += ", ";
      disagreements += group_.members.name(static_cast<int>(from)) + " has " +
                       std::to_string(users_count(call.users, sent)) + " elements for " +
                       group_.members.name(static_cast<int>(to)) + ", which expects " +
                       std::to_string(users_count(call.users, expected));
    }
  }
  if (disagreements.empty()) return;
  exchange_.end();
  throw Error(ErrorKind::kMismatch, group_.members.name(rank()) + " in all_to_all #" +
                                        std::to_string(call.sequence) + ": " + disagreements +
                                        ". Nothing was sent.");
}

// Of what a rank says it sends: no rank says more, so that the sums of counts are places in memory.
void Communicator::check_sum(const Call& call, std::size_t from, const std::uint64_t* counts,
                             std::uint64_t most) {
  for (int to = 0; to < world_size(); ++to) {
    if (counts[to] > most) {
      throw group_.fail(ErrorKind::kSystem,
                        group_.members.name(rank()) + " in " +
                            describe_numbered(call, group_.members) +
                            ": the shared memory of the group is damaged: the announcement of " +
                            group_.members.name(static_cast<int>(from)) +
                            " holds counts that no rank of ringcomm writes");
    }
    most -= counts[to];
  }
}

void Communicator::barrier(Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kBarrier, 0, DType::kUInt8);
  exchange_.begin(call, deadline);
  exchange_.announce(call);
  exchange_.await_all(deadline);
  exchange_.end();
}

}  // namespace ringcomm
