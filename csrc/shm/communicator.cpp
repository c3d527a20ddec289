#include "shm/communicator.h"

#include <algorithm>
#include <new>
#include <ranges>
#include <system_error>
#include <utility>

#include "core/thread.h"
#include "setup/bootstrap.h"
#include "shm/monitored_barrier.h"

namespace ringcomm {
namespace {

// A rank that leaves waits so long for what it has sent to be on its way to other hosts.
constexpr std::chrono::milliseconds kLastMail{1000};

constexpr std::size_t kMostAtOnce = 512 << 10;  // bytes
// Bytes for each rank of what is small: less is sent with the announcement sooner than reached.
constexpr std::size_t kLeastInPlace = 8 << 10;
// Ranks. Every one more takes two slots of each outbox, and slices become shorter.
constexpr int kMostDirect = 16;

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
  if (group_.remote_hosts() != nullptr) {
    place(group_.placement(), group_.segment().inter_host().link);
  } else {
    tune(group_.segment().tuned());
  }
  if (rank() == group_.own_leader()) {
    const bool is_tuned = !group_.spans_hosts() && !group_.segment().tuned().empty();
    group_.segment().publish(size_classes(), is_tuned ? selection.tuned_by : "");
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

void Communicator::monitored_barrier(bool wait_all_ranks, Timeout timeout) {
  shm::monitored_barrier(group_, ++barriers_, wait_all_ranks, Deadline::in(timeout));
}

// Floats of 16 and 8 bits lose a little with every rounding, and a direct plan rounds once where a
// ring rounds at every hop. The rest is by measurement, on one host.
Collectives::AlgorithmFamily Communicator::family_of(Collective collective, std::size_t count,
                                                     DType dtype) const {
  const bool is_on_one_host = group_.placement().num_hosts() == 1;
  // Two ranks move as much either way, and wait for each other once less.
  const bool is_small = count * element_size(dtype) <= kMostAtOnce;
  if (collective == Collective::kAllReduce && world_size() == 2 && is_small && is_on_one_host) {
    return AlgorithmFamily::kOneShot;
  }
  // What is for all ranks is written once, into a slot that all of them read.
  const bool is_for_all = collective == Collective::kAllReduce ||
                          collective == Collective::kAllGather ||
                          collective == Collective::kBroadcast;
  const bool waits_less = is_for_all || collective == Collective::kReduceScatter;
  const bool is_faster = waits_less && world_size() <= kMostDirect && is_on_one_host;
  if (element_size(dtype) < 4 || is_faster) return AlgorithmFamily::kDirect;
  // Trees move as much as a chain, with a logarithm of its waits.
  const bool is_long = collective == Collective::kReduce && world_size() > 2;
  return is_long && is_on_one_host ? AlgorithmFamily::kTree : AlgorithmFamily::kRing;
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

bool Communicator::fits(const shm::Eager& eager, const Chunks& blocks, DType dtype) const {
  return eager.fits(blocks, group_.geometry().small_nbytes / element_size(dtype));
}

bool Communicator::is_tiny(const Call& call) const {
  return call.count * element_size(call.dtype) < kLeastInPlace * world_size();
}

// If every rank scales its input by a factor of its own, no other rank can.
bool Communicator::may_be_zero_copy(const Call& call) const {
  const bool is_scaled = call.reduces && call.op == ReduceOp::kPremulSum;
  const bool is_on_one_host = group_.placement().num_hosts() == 1;
  return !is_selected(call.collective) && !is_scaled && is_on_one_host && world_size() > 1;
}

shm::ZeroCopy* Communicator::zero_copy_way(const Call& call, std::size_t before) {
  if (!may_be_zero_copy(call)) return nullptr;
  shm::ZeroCopy& family = find(zero_copy_, call);
  return fits(family, before) ? &family : nullptr;
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
  if (call.collective == Collective::kAllToAll)
    return carry_out_all_to_all(call, reduction, deadline);
  if (call.algorithm != kUsersPlans) {
    shm::Eager& eager = eager_way(call);
    if (fits(eager, blocks(), call.dtype)) {
      return eagerly(eager, is_tiny(call) ? nullptr : zero_copy_way(call), call, reduction,
                     deadline);
    }
  }
  by_plan(call, reduction, deadline);
}

// If some ranks publish places that cannot be used, which all see, they announce again, all with
// their inputs.
void Communicator::eagerly(shm::Eager& eager, shm::ZeroCopy* family, Call& call,
                           const Reduction& reduction, const Deadline& deadline) {
  for (bool may_tell = family != nullptr;; may_tell = false) {
    std::byte* const payload = exchange_.begin(call, deadline);
    const std::size_t published = may_tell ? publish_buffers(*family, call, payload) : 0;
    const auto write = [&] {
      std::byte* const room = exchange_.room(eager.count(blocks()) * element_size(call.dtype));
      return eager.write(blocks(), reduction, room, payload_stores_, !group_.shares_cores());
    };
    const std::size_t written = published > 0 ? 0 : write();
    exchange_.announce(call, published + written,
                       published > 0 ? family->payload_kind() : shm::PayloadKind::kInput);
    if (published == 0) eager.keep(blocks(), reduction);
    exchange_.await_all(deadline);
    const bool is_open = family != nullptr && family->is_open(announced());
    if (is_open) {
      family->run(blocks(), reduction, announced(), call, deadline);
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
  shm::ZeroCopy* const family = refusal ? nullptr : zero_copy_way(call);
  group_.use(shm::Area::kOutboxes);
  std::byte* const payload = exchange_.begin(call, deadline);
  const std::size_t published = family != nullptr ? publish_buffers(*family, call, payload) : 0;
  exchange_.announce(call, published,
                     published > 0 ? family->payload_kind() : shm::PayloadKind::kInput);
  await_all(refusal, deadline);
  if (family != nullptr && family->is_open(announced())) {
    family->run(blocks(), reduction, announced(), call, deadline);
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

// What a communicator chooses is found by asking it, so that no limit stands here a second time.

namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                       Collective::kAllGather, Collective::kBroadcast,
                                       Collective::kReduce};
// The choice depends on how many bytes an element has, not on its type.
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr std::uint64_t kMostNbytes = std::uint64_t{1} << 40;

bool has_block_per_rank(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather;
}

}  // namespace

// Looks at every power of two. Between two that differ it looks for the first size that is unlike
// the smaller one. It may miss a class that begins and ends between two powers of two.
void Communicator::append_size_classes(Collective collective, DType dtype,
                                       std::vector<SizeClass>& found) const {
  const int num_blocks = has_block_per_rank(collective) ? world_size() : 1;
  const std::uint64_t block_nbytes = num_blocks * element_size(dtype);
  const shm::Eager eager(collective, world_size(), num_blocks, 0, rank());
  Chunks blocks(num_blocks);
  Call call;
  call.collective = collective;
  call.dtype = dtype;
  call.reduces = is_reduction(collective);
  const auto set_count = [&](std::uint64_t block_count) {
    for (Chunk& block : blocks) block.count = block_count;
    call.count = block_count * num_blocks;
    call.algorithm = choose(call);
    return call.algorithm != kUsersPlans && fits(eager, blocks, dtype);
  };
  SizeClass one{SizeClass::kNoLimit, SizeClass::kNoLimit, collective, dtype, Path::kByPlan, {}};
  if (may_be_zero_copy(call) &&
      fits(shm::ZeroCopy(collective, world_size(), num_blocks, 0, rank()), /*before=*/0)) {
    const auto counts = std::views::iota(std::uint64_t{1}, kMostNbytes / block_nbytes);
    one.zero_copy_from = block_nbytes * *std::ranges::partition_point(counts, [&](auto count) {
                           return set_count(count) && is_tiny(call);
                         });
  }
  const auto class_of = [&](std::uint64_t block_count) {
    const bool is_eager = set_count(block_count);
    one.path = is_eager ? Path::kWithCall : Path::kByPlan;
    one.algorithm.assign(is_eager ? "" : algorithm_name(collective, call.algorithm));
    return one;
  };
  const auto are_alike = [](const SizeClass& a, const SizeClass& b) {
    return a.path == b.path && a.algorithm == b.algorithm;
  };
  std::uint64_t first = 1;
  SizeClass current = class_of(first);
  for (std::uint64_t end = 2; end * block_nbytes <= kMostNbytes; first = end, end *= 2) {
    while (!are_alike(current, class_of(end))) {
      const auto counts = std::views::iota(first, end + 1);
      first = *std::ranges::partition_point(
          counts, [&](auto count) { return are_alike(current, class_of(count)); });
      current.most_nbytes = (first - 1) * block_nbytes;
      found.push_back(current);
      current = class_of(first);
    }
  }
  found.push_back(current);
}

std::vector<SizeClass> Communicator::size_classes() const {
  std::vector<SizeClass> found;
  for (const Collective collective : kCollectives) {
    for (const DType dtype : kDTypes) append_size_classes(collective, dtype, found);
  }
  return found;
}

}  // namespace ringcomm
