#include "core/policy.h"

#include <algorithm>
#include <limits>
#include <ranges>

#include "core/chunks.h"
#include "core/status.h"
#include "plan/bitwise.h"
#include "plan/grid.h"

namespace ringcomm {
namespace {

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;

// The mean of integers is that of their sum, which their own type may not hold: it must not travel.
bool adds_at_once(const Call& call) {
  return call.reduces && call.op == ReduceOp::kAvg && !is_floating_point(call.dtype);
}

// Floats of 16 and 8 bits: how often sums are rounded depends on the algorithm, and is not to
// depend on what was measured.
bool rounds_often(const Call& call) { return call.reduces && element_size(call.dtype) < 4; }

AlgorithmId id_of_choice(Collective collective, const Selection::Choice& choice) {
  if (choice.plans) return kUsersPlans;
  if (const Algorithm* found = find_algorithm(collective, choice.name)) return id_of(*found);
  throw Error(ErrorKind::kInvalidArgument,
              std::string(to_string(collective)) + " has no algorithm \"" + choice.name + "\"");
}

using ByFamily = std::array<AlgorithmId, kNumFamilies>;

ByFamily on_one_host(Collective collective) {
  const AlgorithmId by_neighbours = id_of(default_algorithm(collective));
  const auto id_or = [&](const char* name, AlgorithmId otherwise) {
    const Algorithm* const found = find_algorithm(collective, name);
    return found != nullptr ? id_of(*found) : otherwise;
  };
  const AlgorithmId direct = id_or("direct", by_neighbours);
  return {by_neighbours, direct, id_or("one_shot", direct), id_or("double_tree", by_neighbours),
          id_or("recursive_doubling", direct)};
}

// Direct exchange inside hosts needs room for all chunks that a rank sends there, where rings need
// it for those of a column. More than so many make small slices.
constexpr int kMostExchanged = 32;

// What has algorithms of two levels uses them.
ByFamily across_hosts(Collective collective, const Grid& grid) {
  const Algorithm* const by_neighbours = find_algorithm(collective, "hierarchical");
  if (by_neighbours == nullptr) return on_one_host(collective);
  const bool exchanges = (grid.num_columns() - 1) * grid.num_hosts() <= kMostExchanged;
  const Algorithm* const direct =
      exchanges ? find_algorithm(collective, "hierarchical_direct") : by_neighbours;
  return {id_of(*by_neighbours), id_of(*direct), id_of(*direct), id_of(*by_neighbours),
          id_of(*direct)};
}

// Whether the sums of an algorithm are those of pairs, if every addition is rounded. To find out
// takes too long for very many ranks, which then send to each other.
bool adds_pairs(const Algorithm& algorithm, Collective collective, const GroupFacts& facts) {
  const std::vector<int>& host_of =
      facts.host_of_plans.empty() ? facts.host_of : facts.host_of_plans;
  std::vector<Plan> plans;
  for (int r = 0; r < facts.world_size; ++r) {
    plans.push_back(algorithm.generate(r, {facts.world_size, 0, host_of}));
  }
  try {
    return association_difference(collective, plans, Rounding::kEveryAddition).empty();
  } catch (const PlanError&) {
    return false;
  }
}

// Between two hosts both add pairs, and what waits less comes first.
std::optional<AlgorithmId> reproducible_across_hosts(Collective collective,
                                                     const GroupFacts& facts) {
  if (!is_reduction(collective)) return std::nullopt;
  for (const char* const name : {"hierarchical_doubling", "hierarchical_direct"}) {
    const Algorithm* const found = find_algorithm(collective, name);
    if (found != nullptr && adds_pairs(*found, collective, facts)) return id_of(*found);
  }
  return std::nullopt;
}

}  // namespace

Policy::Policy(const GroupFacts& facts)
    : world_size_(facts.world_size),
      is_reproducible_(facts.reproducible),
      choices_(facts.choices),
      tuning_(facts.tuned),
      with_call_nbytes_(facts.with_call_nbytes) {
  for (const auto& [collective, choice] : choices_) {
    selected_[static_cast<int>(collective)] = id_of_choice(collective, choice);
  }
  const Grid grid(facts.world_size, facts.host_of);
  is_on_one_host_ = grid.num_hosts() == 1;
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    automatic_[c] = is_on_one_host_ ? on_one_host(collective) : across_hosts(collective, grid);
  }
  if (is_on_one_host_) return;
  if (is_reproducible_) {
    for (int c = 0; c < kNumCollectives; ++c) {
      in_pairs_[c] = reproducible_across_hosts(static_cast<Collective>(c), facts);
    }
  }
  doubling_ = id_of(*find_algorithm(Collective::kAllReduce, "hierarchical_doubling"));
  doubling_most_ = grid.num_columns() * doubling_pays_up_to(grid.num_hosts(), facts.link);
}

AlgorithmId Policy::algorithm(const Call& call, ExecutorKind executor) const {
  if (adds_at_once(call)) return id_of(*find_algorithm(call.collective, "direct"));
  const auto collective = static_cast<int>(call.collective);
  if (selected_[collective]) return *selected_[collective];
  if (is_reproducible_ && has_rounded_sums(call)) return reproducible_algorithm(call, executor);
  const std::size_t nbytes = call.count * element_size(call.dtype);
  if (const AlgorithmId* tuned = tuning_.find(call.collective, nbytes);
      tuned != nullptr && !rounds_often(call)) {
    return *tuned;
  }
  if (call.collective == Collective::kAllReduce && static_cast<double>(nbytes) <= doubling_most_) {
    return doubling_;
  }
  const auto family = [&] {
    switch (executor) {
      case ExecutorKind::kMessages:
        return family_by_messages(call.collective, call.count, call.dtype, world_size_);
      case ExecutorKind::kFused:
        return family_by_kernel(call.collective, call.count, call.dtype, world_size_);
      case ExecutorKind::kShm:
        break;
    }
    return family_by_shm(call.collective, call.count, call.dtype, world_size_, is_on_one_host_);
  };
  return automatic_[collective][static_cast<int>(family())];
}

AlgorithmId Policy::reproducible_algorithm(const Call& call, ExecutorKind executor) const {
  const std::optional<AlgorithmId>& across_hosts = in_pairs_[static_cast<int>(call.collective)];
  if (across_hosts && !rounds_often(call)) return *across_hosts;
  const auto family =
      family_by_shm(call.collective, call.count, call.dtype, world_size_, is_on_one_host_);
  const bool takes_one_step = executor == ExecutorKind::kShm && family == AlgorithmFamily::kOneShot;
  return id_of(*find_algorithm(call.collective, takes_one_step ? "one_shot" : "direct"));
}

// If every rank scales its input by a factor of its own, no other rank can.
bool Policy::may_be_zero_copy(const Call& call) const {
  const bool is_scaled = call.reduces && call.op == ReduceOp::kPremulSum;
  return !selected_[static_cast<int>(call.collective)] && !is_scaled && is_on_one_host_ &&
         world_size_ > 1;
}

Decision Policy::choose(Call call, ExecutorKind executor, std::size_t payload_nbytes) const {
  call.algorithm = algorithm(call, executor);
  const Path chosen = path(call, executor, payload_nbytes);
  return {chosen, executor == ExecutorKind::kShm && zero_copy(call, chosen), call.algorithm};
}

// ---- Families ----------------------------------------------------------------------------------

// Floats of 16 and 8 bits lose a little with every rounding, and a direct plan rounds once where a
// ring rounds at every hop. The rest is by measurement, on one host.
AlgorithmFamily family_by_shm(Collective collective, std::size_t count, DType dtype, int world_size,
                              bool is_on_one_host) {
  // Two ranks move as much either way, and wait for each other once less.
  constexpr std::size_t kMostAtOnce = 512 * kKiB;
  // Ranks. Every one more takes two slots of each outbox, and slices become shorter.
  constexpr int kMostDirect = 16;

  const bool is_small = count * element_size(dtype) <= kMostAtOnce;
  if (collective == Collective::kAllReduce && world_size == 2 && is_small && is_on_one_host) {
    return AlgorithmFamily::kOneShot;
  }
  // What is for all ranks is written once, into a slot that all of them read.
  const bool is_for_all = collective == Collective::kAllReduce ||
                          collective == Collective::kAllGather ||
                          collective == Collective::kBroadcast;
  const bool waits_less = is_for_all || collective == Collective::kReduceScatter;
  const bool is_faster = waits_less && world_size <= kMostDirect && is_on_one_host;
  if (element_size(dtype) < 4 || is_faster) return AlgorithmFamily::kDirect;
  // Trees move as much as a chain, with a logarithm of its waits.
  const bool is_long = collective == Collective::kReduce && world_size > 2;
  return is_long && is_on_one_host ? AlgorithmFamily::kTree : AlgorithmFamily::kRing;
}

// A direct plan takes 2 latencies and 2 groups of messages, and a ring takes 2 (n-1). A direct plan
// rounds 16- and 8-bit floats once; a ring exchanges only with two neighbours. If a step of the
// ring takes less time on the wire than its calls on the host, the calls decide. The root of a
// direct broadcast sends the buffer n-1 times. The root of a chain sends it once, but a chain needs
// slices that are worth their calls.
AlgorithmFamily family_by_messages(Collective collective, std::size_t count, DType dtype,
                                   int world_size) {
  const std::size_t nbytes = count * element_size(dtype);  // of the whole buffer
  const bool is_direct = collective == Collective::kBroadcast
                             ? nbytes < 2 * kLeastMessageSlice
                             : element_size(dtype) < 4 || nbytes < world_size * kLeastMessageSlice;
  return is_direct ? AlgorithmFamily::kDirect : AlgorithmFamily::kRing;
}

namespace {

// A line of the table for kernels. The first line of the collective that allows the sums, the ranks
// and the bytes is used. Collectives without a line have one algorithm.
struct KernelChoice {
  enum class Sums { kAny, kRoundedOnce };  // floats of less than 4 bytes
  static constexpr int kAllRanks = std::numeric_limits<int>::max();
  static constexpr std::size_t kAllSizes = std::numeric_limits<std::size_t>::max();

  Collective collective;
  Sums sums;
  int most_ranks;
  std::size_t most_nbytes;  // of the whole buffer
  AlgorithmFamily family;
};

constexpr auto kAny = KernelChoice::Sums::kAny;
constexpr auto kOnce = KernelChoice::Sums::kRoundedOnce;
constexpr int kAllRanks = KernelChoice::kAllRanks;
constexpr std::size_t kAllSizes = KernelChoice::kAllSizes;

// Measured among 4 ranks that shared a GPU (benchmarks/results/gpu-2026-11-27/fused_kernel.csv):
// 1 MiB by one_shot in 13 us, direct 26, ring 29; 16 MiB by the ring in 44 us, one_shot 61,
// direct 64. The others are arithmetic: an action takes 5.1 us, and a GPU sends 370 GB/s.
constexpr KernelChoice kKernelChoices[] = {
    {Collective::kAllReduce, kOnce, 3, 8 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kOnce, kAllRanks, 4 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kOnce, kAllRanks, kAllSizes, AlgorithmFamily::kDirect},
    {Collective::kAllReduce, kAny, 3, 8 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, 3, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllReduce, kAny, 4, 1 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, 4, 8 * kMiB, AlgorithmFamily::kDoubling},
    {Collective::kAllReduce, kAny, 4, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllReduce, kAny, 7, 4 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, 7, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllReduce, kAny, kAllRanks, 512 * kKiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, kAllRanks, 8 * kMiB, AlgorithmFamily::kDoubling},
    {Collective::kAllReduce, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kReduceScatter, kOnce, kAllRanks, kAllSizes, AlgorithmFamily::kDirect},
    {Collective::kReduceScatter, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kReduce, kOnce, kAllRanks, kAllSizes, AlgorithmFamily::kDirect},
    {Collective::kReduce, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllGather, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kBroadcast, kAny, kAllRanks, 1 * kMiB, AlgorithmFamily::kDirect},
    {Collective::kBroadcast, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
};

}  // namespace

// Sums of floats of less than 4 bytes are rounded once, at every size.
AlgorithmFamily family_by_kernel(Collective collective, std::size_t count, DType dtype,
                                 int world_size) {
  const std::size_t nbytes = count * element_size(dtype);
  const bool rounds =
      is_reduction(collective) && is_floating_point(dtype) && element_size(dtype) < 4;
  const auto found = std::ranges::find_if(kKernelChoices, [&](const KernelChoice& choice) {
    return choice.collective == collective && (choice.sums == kAny || rounds) &&
           world_size <= choice.most_ranks && nbytes <= choice.most_nbytes;
  });
  return found == std::end(kKernelChoices) ? AlgorithmFamily::kDirect : found->family;
}

std::string why_no_kernels(int world_size, bool spans_hosts, int most_ranks) {
  if (world_size == 1) return "there is but one rank";
  if (world_size > most_ranks)
    return "there are more than " + std::to_string(most_ranks) + " ranks";
  return spans_hosts ? "the ranks are on several hosts" : "";
}

// ---- What is sent with the call ----------------------------------------------------------------

namespace {

constexpr std::size_t kWholePage = 4 * kKiB;
// Whatever the network is: with gloo, a crossing that is spared is worth more.
constexpr std::size_t kLeastSmall = 256, kLeastSmallByGloo = kKiB;

}  // namespace

// An all-to-all announces two counts for each rank.
std::size_t with_call_nbytes(int world_size) {
  const std::size_t by_ranks = world_size <= 2    ? 64 * kKiB
                               : world_size <= 8  ? 32 * kKiB
                               : world_size <= 32 ? 16 * kKiB
                                                  : 8 * kKiB;
  const std::size_t counts = 2 * static_cast<std::size_t>(world_size) * sizeof(std::uint64_t);
  return std::max(by_ranks, round_up(counts, kWholePage));
}

std::size_t with_call_nbytes(const std::vector<int>& host_of, const Link& link,
                             std::string_view engine) {
  const std::size_t on_one_host = with_call_nbytes(static_cast<int>(host_of.size()));
  const Grid grid(static_cast<int>(host_of.size()), host_of);
  const bool is_known = link.latency > 0 && link.bandwidth > 0;
  if (grid.num_hosts() == 1 || !is_known) return on_one_host;
  const double pays = one_shot_pays_up_to(grid.num_hosts(), grid.num_columns(), link);
  const std::size_t fits = kMostBetweenHosts / grid.num_columns() / kWholePage * kWholePage;
  const std::size_t most = std::max(on_one_host, fits);
  const std::size_t least = engine == "gloo" ? kLeastSmallByGloo : kLeastSmall;
  return std::max(pays < static_cast<double>(most) ? static_cast<std::size_t>(pays) : most, least);
}

// ---- Slices ------------------------------------------------------------------------------------

namespace {

// Where data goes one way, one rank sends a slice while the next one takes the slice before it, and
// of few slices not much of the time is shared. Elsewhere all ranks have something to do all the
// time, and every slice is one more wait.
constexpr std::size_t kSlicesOnTheWay = 2;
constexpr std::size_t kLeastOnTheWay = 32 * kKiB;  // that is worth a wait

// These are more packs than a lane of a kernel has movers. With fewer, some movers would have
// nothing to do.
constexpr std::size_t kLeastKernelSlice = 8 * kKiB;

bool goes_one_way(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce;
}

}  // namespace

// Where all wait for each other's data in every round, none runs ahead of its receivers. What goes
// one way is to ask them for leave, if the slots are large enough.
std::size_t slice_nbytes(Collective collective, std::size_t slot_nbytes, std::size_t chunk_nbytes,
                         std::size_t sent_unasked) {
  if (sent_unasked > 0) {
    return goes_one_way(collective) ? slot_nbytes : std::min(slot_nbytes, sent_unasked);
  }
  if (!goes_one_way(collective)) return slot_nbytes;
  const std::size_t part = chunk_nbytes / kSlicesOnTheWay / kSliceAlignment * kSliceAlignment;
  return std::min(slot_nbytes, std::max(part, kLeastOnTheWay));
}

// The largest slices that fit into slots and give all lanes the same number of them.
std::size_t kernel_slice_nbytes(std::size_t fits, std::size_t chunk_nbytes, std::size_t num_lanes,
                                std::size_t pack_nbytes) {
  const std::size_t per_round = num_lanes * fits;
  const std::size_t rounds = std::max<std::size_t>(1, divide_up(chunk_nbytes, per_round));
  const std::size_t slices = num_lanes * rounds;
  const std::size_t share = divide_up(chunk_nbytes, slices);
  return std::min(fits, std::max(round_up(share, pack_nbytes), kLeastKernelSlice));
}

// ---- The outcome -------------------------------------------------------------------------------

namespace {

constexpr std::uint64_t kMostLookedAt = std::uint64_t{1} << 40;  // bytes

bool has_block_per_rank(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather;
}

// Calls of a collective by the elements of one of their blocks.
class Calls {
 public:
  Calls(const Policy& policy, ExecutorKind executor, Collective collective, DType dtype)
      : policy_(policy),
        executor_(executor),
        num_blocks_(has_block_per_rank(collective) ? policy.world_size() : 1) {
    call_.collective = collective;
    call_.dtype = dtype;
    call_.reduces = is_reduction(collective);
    const bool sends_one_block =
        executor != ExecutorKind::kShm || collective == Collective::kAllGather;
    payload_blocks_ = sends_one_block ? 1 : num_blocks_;
  }

  std::uint64_t block_nbytes() const { return num_blocks_ * element_size(call_.dtype); }
  std::uint64_t most() const { return kMostLookedAt / block_nbytes(); }

  Decision decision(std::uint64_t count) const {
    Call call = call_;
    call.count = count * num_blocks_;
    return policy_.choose(call, executor_, count * payload_blocks_ * element_size(call_.dtype));
  }
  // Its limit is to be set.
  SizeClass size_class(std::uint64_t count) const {
    const Decision chosen = decision(count);
    SizeClass one{SizeClass::kNoLimit, zero_copy_from_, call_.collective,
                  call_.dtype,         chosen.path,     {}};
    if (chosen.path == Path::kByPlan) {
      one.algorithm.assign(name_of(policy_.choices(), call_.collective, chosen.algorithm));
    }
    return one;
  }
  void find_zero_copy() {
    const auto counts = std::views::iota(std::uint64_t{1}, most());
    const auto first = std::ranges::partition_point(
        counts, [this](auto count) { return !decision(count).zero_copy; });
    if (first != counts.end()) zero_copy_from_ = *first * block_nbytes();
  }

 private:
  const Policy& policy_;
  const ExecutorKind executor_;
  const std::uint64_t num_blocks_;
  std::uint64_t payload_blocks_;
  Call call_;
  std::uint64_t zero_copy_from_ = SizeClass::kNoLimit;
};

bool are_alike(const SizeClass& a, const SizeClass& b) {
  return a.path == b.path && a.algorithm == b.algorithm;
}

}  // namespace

// Looks at every power of two. Between two that differ it looks for the first size that is unlike
// the smaller one. It may miss a class that begins and ends between two powers of two.
std::vector<SizeClass> size_classes(const Policy& policy, ExecutorKind executor,
                                    Collective collective, DType dtype) {
  Calls calls(policy, executor, collective, dtype);
  calls.find_zero_copy();
  std::vector<SizeClass> found;
  std::uint64_t first = 1;
  SizeClass current = calls.size_class(first);
  for (std::uint64_t end = 2; end <= calls.most(); first = end, end *= 2) {
    while (!are_alike(current, calls.size_class(end))) {
      const auto counts = std::views::iota(first, end + 1);
      first = *std::ranges::partition_point(
          counts, [&](auto count) { return are_alike(current, calls.size_class(count)); });
      current.most_nbytes = (first - 1) * calls.block_nbytes();
      found.push_back(current);
      current = calls.size_class(first);
    }
  }
  found.push_back(current);
  return found;
}

}  // namespace ringcomm
