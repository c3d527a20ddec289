#include "shm/communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/thread.h"
#include "setup/bootstrap.h"

namespace ringcomm {
namespace {

// A rank that leaves waits so long for what it has sent to be on its way to other hosts.
constexpr std::chrono::milliseconds kLastMail{1000};

const GroupConfig& checked(const GroupConfig& config) {
  const int rank = config.rank, world_size = config.world_size;
  if (world_size < 1) {
    throw Error(ErrorKind::kInvalidArgument,
                "world_size is " + std::to_string(world_size) + "; it must be at least 1");
  }
  if (rank < 0 || rank >= world_size) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank is " + std::to_string(rank) +
                    "; it must be 0 to world_size - 1 = " + std::to_string(world_size - 1));
  }
  return config;
}

GroupConfig with_what_it_goes_by(GroupConfig config, const Selection& selection) {
  config.link = selection.link;
  config.tuned = tuned_for(config.world_size, selection.tuned);
  return config;
}

// Across hosts nothing has been measured.
GroupFacts facts_of(shm::Group& group) {
  GroupFacts facts{.with_call_nbytes = group.geometry().small_nbytes};
  if (group.remote_hosts() == nullptr) {
    const auto tuned = group.segment().tuned();
    facts.tuned.assign(tuned.begin(), tuned.end());
  } else {
    facts.host_of = group.placement().host_of;
    facts.link = group.segment().inter_host().link;
  }
  return facts;
}

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                       Collective::kAllGather, Collective::kBroadcast,
                                       Collective::kReduce};
// The choice depends on how many bytes an element has, not on its type.
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};

}  // namespace

Communicator::Communicator(Store& store, const GroupConfig& config, const Selection& selection,
                           const shm::ConnectHosts& connect_hosts, bool has_met) try
    : Collectives(config.rank, checked(config).world_size, selection),
      group_(store, with_what_it_goes_by(config, selection), connect_hosts),
      joining_{(has_met = true, &group_)},
      exchange_(group_),
      executor_(group_),
      mail_(group_),
      peers_(config.world_size) {
  agree_on(facts_of(group_));
  if (rank() == group_.own_leader()) {
    const bool is_tuned = !group_.spans_hosts() && !group_.segment().tuned().empty();
    group_.segment().publish(size_classes(), is_tuned ? selection.tuned_by : "",
                             selection.reproducible);
  }
  joining_.group = nullptr;
} catch (const Error& error) {
  // Other errors of set-up have reached all ranks already.
  if (dynamic_cast<const NoThread*>(&error) != nullptr && !has_met) {
    decline(store, config, std::current_exception());
  }
  throw;
} catch (...) {
  if (!has_met) decline(store, config, std::current_exception());
  throw;
}

std::vector<SizeClass> Communicator::size_classes() const {
  std::vector<SizeClass> found;
  for (const Collective collective : kCollectives) {
    for (const DType dtype : kDTypes) {
      const auto classes = ringcomm::size_classes(policy(), kExecutor, collective, dtype);
      found.insert(found.end(), classes.begin(), classes.end());
    }
  }
  return found;
}

// A rank that has failed here will not close the group, and the others would wait for it.
Communicator::Joining::~Joining() {
  if (group == nullptr) return;
  const Error error(ErrorKind::kSystem, "it could not join");
  group->fail_with(std::make_exception_ptr(error), [] { return std::string("making the group"); });
}

Communicator::~Communicator() {
  at_the_end([this] { close("the communicator is gone"); });
}

void Communicator::close(const std::string& reason) { close(reason, shm::Closed::kLeft); }

void Communicator::refuse(const std::string& reason, Timeout timeout) {
  try {
    exchange_.refuse(reason, Deadline::in(timeout));
  } catch (...) {
    group_.fail_with(std::current_exception(), [] { return std::string("refusing a call"); });
    throw;
  }
}

void Communicator::settle(const std::exception_ptr& error, std::uint64_t before, int num_calls,
                          Timeout timeout) noexcept {
  if (world_size() == 1 || group_.broken()) return;
  const std::uint64_t announced = exchange_.announced();
  const bool is_known = announced > before && exchange_.raises();
  if (is_known) return;
  const auto doing = [&] { return "collective #" + std::to_string(announced); };
  if (exchange_.is_under_way() || announced >= before + num_calls) {
    return group_.fail_with(error, doing);
  }
  try {
    exchange_.refuse(what_of(error), Deadline::in(timeout));
  } catch (...) {
    group_.fail_with(error, doing);
  }
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

template <typename T>
T& Communicator::find(ByCall<T>& ways, const Call& call) {
  const auto key = std::make_pair(call.collective, call.root);
  auto known = ways.find(key);
  if (known == ways.end()) {
    known = ways.try_emplace(key, call.collective, world_size(), static_cast<int>(blocks().size()),
                             std::max(call.root, 0), rank())
                .first;
  }
  return known->second;
}

shm::Eager& Communicator::eager_way(const Call& call) { return find(eager_, call); }

shm::ZeroCopy* Communicator::zero_copy_way(const Call& call, Path path, std::size_t before) {
  if (!policy().zero_copy(call, path)) return nullptr;
  shm::ZeroCopy& zero_copy = find(zero_copy_, call);
  return fits(zero_copy, before) ? &zero_copy : nullptr;
}

void Communicator::rethrow_named(const std::exception_ptr& error) {
  const auto named = [&] {
    return Error(ErrorKind::kSystem, group_.members.name(rank()) + " in collective #" +
                                         std::to_string(exchange_.announced()) + ": " +
                                         what_of(error));
  };
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    throw named();
  } catch (const std::system_error&) {
    throw named();
  }
}

void Communicator::carry_out(Call call, const Reduction& reduction, Timeout timeout) {
  settled(1, timeout, [&] { carry_out_here(call, reduction, Deadline::roughly_in(timeout)); });
}

void Communicator::carry_out_here(Call& call, const Reduction& reduction,
                                  const Deadline& deadline) {
  if (call.collective == Collective::kAllToAll) {
    if (exchange_.is_impatient()) throw shm::NotYet();
    return carry_out_all_to_all(call, reduction, deadline);
  }
  if (may_travel_with_call(call, kExecutor)) {
    shm::Eager& eager = eager_way(call);
    const std::size_t payload_nbytes = eager.most_count(blocks()) * element_size(call.dtype);
    if (policy().path(call, kExecutor, payload_nbytes) == Path::kWithCall) {
      return eagerly(eager, zero_copy_way(call, Path::kWithCall), call, reduction, deadline);
    }
  }
  if (exchange_.is_impatient()) throw shm::NotYet();
  by_plan(call, reduction, deadline);
}

// If some ranks publish places that cannot be used, which all see, they announce again, all with
// their inputs.
void Communicator::eagerly(shm::Eager& eager, shm::ZeroCopy* zero_copy, Call& call,
                           const Reduction& reduction, const Deadline& deadline) {
  const auto announce = [&](bool may_tell) {
    std::byte* const payload = exchange_.begin(call, deadline);
    const std::size_t published = may_tell ? publish_buffers(*zero_copy, call, payload) : 0;
    const auto write = [&] {
      std::byte* const room = exchange_.room(eager.count(blocks()) * element_size(call.dtype));
      return eager.write(blocks(), reduction, room, payload_stores_, !group_.shares_cores());
    };
    const std::size_t written = published > 0 ? 0 : write();
    exchange_.announce(call, published + written,
                       published > 0 ? zero_copy->payload_kind() : shm::PayloadKind::kInput);
    if (published == 0) eager.keep(blocks(), reduction);
  };
  for (bool may_tell = zero_copy != nullptr;; may_tell = false) {
    if (std::exchange(resumes_, false)) {
      exchange_.resume(call);
    } else {
      announce(may_tell);
    }
    exchange_.await_all(deadline);
    const bool is_open = zero_copy != nullptr && zero_copy->is_open(announced());
    if (is_open) {
      exchange_.begin_transfer();
      zero_copy->run(blocks(), reduction, announced(), call, deadline);
    } else if (!exchange_.any_publishes(shm::PayloadKind::kPlace)) {
      const Pass pass = group_.shares_cores() ? Pass::kStraight : Pass::kInStrands;
      eager.read(blocks(), reduction, exchange_, pass);
    } else {
      exchange_.end();
      continue;
    }
    return exchange_.end();
  }
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
  shm::ZeroCopy* const zero_copy = refusal ? nullptr : zero_copy_way(call, Path::kByPlan);
  group_.use(shm::Area::kOutboxes);
  std::byte* const payload = exchange_.begin(call, deadline);
  const std::size_t published =
      zero_copy != nullptr ? publish_buffers(*zero_copy, call, payload) : 0;
  exchange_.announce(call, published,
                     published > 0 ? zero_copy->payload_kind() : shm::PayloadKind::kInput);
  await_all(refusal, deadline);
  exchange_.begin_transfer();
  if (zero_copy != nullptr && zero_copy->is_open(announced())) {
    zero_copy->run(blocks(), reduction, announced(), call, deadline);
  } else if (!refusal) {
    executor_.run(program, chunks(call, program.num_chunks), reduction, call, deadline);
  }
  exchange_.end(/*raises=*/refusal != nullptr);
  if (refusal) std::rethrow_exception(refusal);
}

void Communicator::give_back(Timeout timeout) {
  settled(1, timeout, [&] {
    if (!mail_.is_idle()) {
      throw Error(ErrorKind::kInvalidArgument,
                  group_.members.name(rank()) +
                      " cannot give back its shared memory: messages that it has begun to send or "
                      "to receive are not done");
    }
    barrier(timeout);
    group_.segment().give_back();
    mail_.give_back();
  });
}

void Communicator::barrier(Timeout timeout) {
  settled(1, timeout, [&] {
    const Deadline deadline = Deadline::roughly_in(timeout);
    Call call = make_call(Collective::kBarrier, 0, DType::kUInt8);
    exchange_.begin(call, deadline);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    exchange_.end();
  });
}

// ---- The all-to-all -----------------------------------------------------------------------------

namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 44;  // that any host has memory for

}  // namespace

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
  // The table goes with the call in any case.
  const std::size_t most_nbytes = std::max(policy().with_call_nbytes(), table_nbytes);
  const std::size_t most = (most_nbytes - table_nbytes) / element_nbytes;
  const Path path = path_of(call, kExecutor, table_nbytes + total * element_nbytes, most_nbytes);
  call.eager = path == Path::kWithCall;
  if (call.eager) payload = exchange_.room(table_nbytes + total * element_nbytes);
  std::memcpy(payload, counts, table_nbytes);
  std::size_t published = 0, written = 0;
  shm::ZeroCopy* const zero_copy = refusal ? nullptr : zero_copy_way(call, path, table_nbytes);
  if (call.eager) {
    written = eager_way(call).write(blocks(), reduction, payload + table_nbytes, payload_stores_,
                                    !group_.shares_cores());
  } else if (zero_copy != nullptr) {
    published = publish_buffers(*zero_copy, call, payload + table_nbytes);
  }
  exchange_.announce(call, table_nbytes + published + written,
                     published > 0 ? zero_copy->payload_kind() : shm::PayloadKind::kInput);
  if (call.eager) eager_way(call).keep(blocks(), reduction);
  await_all(refusal, deadline);
  if (path != Path::kWithCall) exchange_.begin_transfer();
  for (std::size_t r = 0; r < n; ++r) {
    if (r != own) std::memcpy(&counts_[2 * n * r], exchange_.payload_of(r), table_nbytes);
  }
  check_counts(call);
  if (zero_copy != nullptr && zero_copy->is_open(announced(table_nbytes))) {
    zero_copy->run(blocks(), reduction, announced(table_nbytes), call, deadline);
    zero_copy->done();
    return exchange_.end();
  }

  bool all_eager = true;
  for (std::size_t from = 0; from < n; ++from) {
    const std::uint64_t* theirs = &counts_[2 * n * from];
    const bool eager = from == own ? call.eager : exchange_.call_of(from).eager != 0;
    all_eager = all_eager && eager;
    if (eager) {
      check_sum(call, from, theirs, most);
      const std::size_t before = std::accumulate(theirs, theirs + own, std::uint64_t{0});
      const Chunk& block = blocks()[from * n + own];
      if (from != own && block.count > 0) {
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
  if (zero_copy != nullptr) zero_copy->done();
  exchange_.end(/*raises=*/refusal != nullptr);
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
  exchange_.end(/*raises=*/true);
  throw Error(ErrorKind::kMismatch, group_.members.name(rank()) + " in all_to_all #" +
                                        std::to_string(call.sequence) + ": " + disagreements +
                                        ". Nothing was sent.");
}

// Checks the counts that a rank has sent: their sums must be places in memory, so no rank may send
// more.
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

}  // namespace ringcomm
