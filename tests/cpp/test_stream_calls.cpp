// What the collectives on streams cost the host: the calls of each are held to a budget that
// follows from its plan, a repeated one allocates nothing, and sums stay on the kernels' fast path.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "gpu/streams/cost.h"
#include "gpu/streams/device_collectives.h"
#include "gpu/streams/executor.h"
#include "reduce/partition.h"

namespace {

long num_allocations = 0;

}  // namespace

void* operator new(std::size_t nbytes) {
  ++num_allocations;
  if (void* memory = std::malloc(nbytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t nbytes, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(nbytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace ringcomm;
using streams::Calls;
using streams::Layout;
using streams::Workload;

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;
constexpr std::size_t kSizes[] = {kKiB, kMiB, 64 * kMiB, kGiB};
constexpr Layout kDefault;

int divide_up(std::size_t a, std::size_t b) { return static_cast<int>((a + b - 1) / b); }

// The slices of what one channel carries of a chunk. `added` of them arrive in one group and share
// its room; a window has two, if they are worth it.
int num_slices(std::size_t chunk_nbytes, int num_channels, int added) {
  const std::size_t part =
      std::max<std::size_t>(chunk_nbytes / num_channels, kDefault.min_slice_nbytes);
  const std::size_t nbytes = std::min(part, chunk_nbytes) * added;
  const int worth = static_cast<int>(std::min<std::size_t>(2, nbytes / kDefault.min_slice_nbytes));
  return std::max({1, worth, divide_up(nbytes, kDefault.slice_nbytes)});
}

// A chain's, of which there are up to 16 as long as they are worth it.
int num_chain_slices(std::size_t nbytes, int num_channels) {
  const std::size_t part =
      std::min(nbytes, std::max(nbytes / num_channels, std::size_t{kDefault.min_slice_nbytes}));
  const int worth = static_cast<int>(std::min<std::size_t>(16, part / kDefault.min_slice_nbytes));
  return std::max({1, worth, divide_up(part, kDefault.slice_nbytes)});
}

// Channels share the groups: these are one channel's.
//
//    steps that add      one group for each slice, a kernel to add each
//    steps that copy     one group; a chain's: one for each slice, and one more where a rank
//                        receives the last slice and sends the first at different times
//    messages            one a group to the next rank of a ring, n-1 to all others
//
// Sums beside messages take two records and two waits each, and if there is but one slice none.
Calls budget(Collective collective, const std::string& algorithm, int n, std::size_t nbytes,
             int channels) {
  const bool ring = algorithm == "ring";
  if (collective == Collective::kBroadcast) {
    const int slices = ring ? num_chain_slices(nbytes, channels) : 1;
    const int sends = ring ? slices : n - 1;
    return {.groups = ring ? slices + 1 : 1, .sends = sends, .recvs = ring ? slices : 1};
  }
  const int peers = ring ? 1 : n - 1;
  const int steps = ring ? n - 1 : 1;
  const int slices = num_slices(nbytes / n, channels, peers);
  const bool adds = collective != Collective::kAllGather;
  const bool copies = collective != Collective::kReduceScatter;
  Calls calls;
  calls.reductions = adds ? steps * slices : 0;
  calls.groups = calls.reductions + (copies ? steps : 0);
  calls.sends = calls.recvs = calls.groups * peers;
  if (slices > 1) calls.records = calls.waits = 2 * calls.reductions;
  if (collective == Collective::kAllGather) {
    calls.copies = 1;  // of the own chunk, beside the messages if it is large
    calls.records = calls.waits = nbytes / n >= kDefault.min_slice_nbytes ? 2 : 0;
  }
  return calls;
}

bool within(const Calls& calls, const Calls& budget, int num_channels) {
  const int c = num_channels;
  // The further channels begin and end behind channel 0: that takes 2 records and 2 waits.
  const int ends = c > 1 ? 1 + (c - 1) : 0;
  return calls.groups <= budget.groups && calls.launches <= c * budget.groups &&
         calls.sends <= c * budget.sends && calls.recvs <= c * budget.recvs &&
         calls.reductions <= c * budget.reductions && calls.copies <= c * budget.copies &&
         calls.records <= c * budget.records + ends && calls.waits <= c * budget.waits + ends;
}

std::string describe(const Calls& c) {
  return std::to_string(c.groups) + " groups, " + std::to_string(c.launches) + " launches, " +
         std::to_string(c.sends) + " sends, " + std::to_string(c.recvs) + " recvs, " +
         std::to_string(c.reductions) + " reductions, " + std::to_string(c.copies) + " copies, " +
         std::to_string(c.records) + " records, " + std::to_string(c.waits) + " waits";
}

Calls count(Collective collective, const std::string& algorithm, int n, std::size_t nbytes,
            int rank = 0, DType dtype = DType::kFloat32, const Layout& layout = kDefault) {
  return count_calls(
      {.collective = collective,
       .algorithm =
           collective == Collective::kBroadcast && algorithm == "ring" ? "chain" : algorithm,
       .world_size = n,
       .rank = rank,
       .root = 1,
       .count = nbytes / element_size(dtype),
       .dtype = dtype},
      layout);
}

// Takes calls, and looks at what the sums are given.
struct LookingApi {
  struct Stream {};
  struct Event {};
  struct Comm {};

  int num_sums = 0;
  int num_copies = 0;
  bool aligned_alike = true;

  void group_start() {}
  void send(const std::byte*, std::size_t, int, Comm, Stream) {}
  void recv(std::byte*, std::size_t, int, Comm, Stream) {}
  void group_end() {}
  void reduce(const Reduction&, const void* const* inputs, int num_inputs, void* output,
              std::size_t, Stream) {
    ++num_sums;
    for (int i = 0; i < num_inputs; ++i) {
      const auto differing =
          reinterpret_cast<std::uintptr_t>(inputs[i]) ^ reinterpret_cast<std::uintptr_t>(output);
      aligned_alike = aligned_alike && differing % kPackBytes == 0;
    }
  }
  void copy(void*, const void*, std::size_t, Stream) { ++num_copies; }
  void record(Event, Stream) {}
  void wait(Stream, Event, streams::Wait) {}
  void push_range(const Pipeline&, int) {}
  void pop_range() {}
};

std::byte* nowhere(std::uintptr_t which) { return reinterpret_cast<std::byte*>((which + 1) << 40); }

class Rank : public streams::DeviceCollectives {
 public:
  Rank(int world_size, const std::string& algorithm, const Layout& layout)
      : DeviceCollectives(/*rank=*/1, world_size, Selection::named(algorithm)),
        executor_(1, layout, channels(layout), {}) {}

  LookingApi api;

 private:
  static std::vector<streams::Channel<LookingApi>> channels(const Layout& layout) {
    std::vector<streams::Channel<LookingApi>> all(layout.num_channels);
    for (auto& channel : all) {
      channel.scratch = nowhere(9);
      channel.reduced.resize(layout.slices_in_flight);
    }
    return all;
  }
  void enqueue_program(Call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, Timeout) override {
    executor_.run(api, program, chunks, reduction);
  }

  streams::Executor<LookingApi> executor_;
};

constexpr streams::DeviceCollectives::Timeout kNoTimeout{0};

}  // namespace

TEST(no_collective_needs_more_calls_than_its_plan_says) {
  for (const int num_channels : {1, 2}) {
    Layout layout;
    layout.num_channels = num_channels;
    for (const int n : {4, 8}) {
      for (const std::size_t nbytes : kSizes) {
        for (const char* algorithm : {"ring", "direct"}) {
          for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter,
                                              Collective::kAllGather, Collective::kBroadcast}) {
            const Calls most = budget(collective, algorithm, n, nbytes, num_channels);
            for (int rank = 0; rank < n; ++rank) {
              const Calls calls =
                  count(collective, algorithm, n, nbytes, rank, DType::kFloat32, layout);
              CHECK_WITH(within(calls, most, num_channels),
                         std::string(to_string(collective)) + " of " + std::to_string(nbytes) +
                             " bytes on rank " + std::to_string(rank) + " of " + std::to_string(n) +
                             ", " + std::to_string(num_channels) + " channels: " + describe(calls) +
                             "; budget: " + describe(most));
            }
          }
        }
      }
    }
  }
}

TEST(a_small_direct_all_reduce_is_two_groups_with_a_sum_between_them) {
  for (const int n : {4, 8}) {
    const Calls expected{
        .groups = 2, .launches = 2, .sends = 2 * (n - 1), .recvs = 2 * (n - 1), .reductions = 1};
    for (const std::size_t nbytes : {kKiB, kMiB}) {
      CHECK(count(Collective::kAllReduce, "direct", n, nbytes) == expected);
      CHECK(count(Collective::kAllReduce, "auto", n, nbytes) == expected);
    }
  }
}

TEST(an_all_reduce_of_64_mib_takes_less_time_on_the_host_than_on_the_wire) {
  const Calls calls = count(Collective::kAllReduce, "ring", 4, 64 * kMiB);
  CHECK_EQ(calls.groups, 2 * 3 + 3);  // 2 slices in 3 steps that add, 3 that copy
  CHECK_EQ(calls.reductions, 2 * 3);
  const double wire_seconds = 2.0 * 3 / 4 * 64 * kMiB / streams::kWireBandwidth;
  CHECK(host_seconds(calls) < wire_seconds);
}

TEST(the_cost_is_that_of_a_call_and_of_each_call_it_makes) {
  CHECK_EQ(streams::host_seconds({}), streams::kCallSeconds);
  const Calls one_each{1, 1, 1, 1, 1, 1, 1, 1};
  const double each = streams::kLaunchSeconds + streams::kReductionSeconds + streams::kCopySeconds +
                      2 * streams::kEventSeconds;
  CHECK(std::abs(streams::host_seconds(one_each) - streams::kCallSeconds - each) < 1e-12);
}

TEST(rings_are_chosen_from_where_their_steps_take_longer_than_their_calls) {
  const auto chosen = [](Collective collective, std::size_t nbytes, DType dtype) {
    const Calls calls = count(collective, "auto", 4, nbytes, 1, dtype);
    return calls == count(collective, "ring", 4, nbytes, 1, dtype) ? "ring" : "direct";
  };
  const std::size_t step = streams::kMinSliceNbytes;
  CHECK_EQ(chosen(Collective::kAllReduce, 4 * step - 64, DType::kFloat32), std::string("direct"));
  CHECK_EQ(chosen(Collective::kAllReduce, 4 * step, DType::kFloat32), std::string("ring"));
  CHECK_EQ(chosen(Collective::kAllReduce, 64 * step, DType::kBFloat16), std::string("direct"));
  CHECK_EQ(chosen(Collective::kBroadcast, 2 * step - 64, DType::kFloat32), std::string("direct"));
  CHECK_EQ(chosen(Collective::kBroadcast, 2 * step, DType::kBFloat16), std::string("ring"));
}

TEST(a_repeated_call_allocates_nothing) {
  const int n = 4;
  for (const char* algorithm : {"ring", "direct"}) {
    for (const std::size_t nbytes : kSizes) {
      Rank rank(n, algorithm, {.num_channels = 2});
      const std::size_t count = nbytes / 4;
      std::vector<Input> inputs;
      std::vector<Output> outputs;
      for (int r = 0; r < n; ++r) {
        inputs.push_back({nowhere(2) + r * nbytes, count / (r + 1)});
        outputs.push_back({nowhere(3) + r * nbytes, count / (r + 1)});
      }
      const auto all = [&] {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
          const Reduce reduce{DType::kFloat32, op, 2.0};
          rank.all_reduce(nowhere(0), nowhere(1), count, reduce, kNoTimeout);
          rank.reduce_scatter(inputs, nowhere(1), reduce, kNoTimeout);
          rank.reduce(nowhere(0), nowhere(1), count, reduce, 0, kNoTimeout);
        }
        rank.all_gather(nowhere(0), outputs, DType::kFloat32, kNoTimeout);
        rank.broadcast(nowhere(0), count, DType::kFloat32, 0, kNoTimeout);
        rank.all_to_all(inputs, outputs, DType::kFloat32, kNoTimeout);
      };
      all();
      const long before = num_allocations;
      all();
      CHECK_EQ(num_allocations, before);
    }
  }
}

// However many shapes there are, and in whatever order they come.
TEST(schedules_are_made_for_the_counts_of_the_call) {
  Rank rank(4, "ring", Layout{});
  for (const std::size_t count : {100, 5, 100}) {
    for (std::size_t shape = 0; shape < 200; ++shape) {
      rank.api.num_sums = 0;
      const std::size_t nbytes = (shape % 7) * 64 * kMiB + 64 * (count + shape);
      rank.all_reduce(nowhere(0), nowhere(0), nbytes / 4, {DType::kFloat32, ReduceOp::kSum},
                      kNoTimeout);
      CHECK_EQ(rank.api.num_sums, streams::count_calls({.collective = Collective::kAllReduce,
                                                        .algorithm = "ring",
                                                        .world_size = 4,
                                                        .rank = 1,
                                                        .count = nbytes / 4},
                                                       Layout{})
                                      .reductions);
    }
  }
}

TEST(only_what_is_not_there_already_is_copied) {
  Rank rank(4, "ring", Layout{});
  std::vector<Output> outputs;
  for (int r = 0; r < 4; ++r) outputs.push_back({nowhere(r), 100});
  const auto all_gather = [&](const void* input) {
    rank.api.num_copies = 0;
    rank.all_gather(input, outputs, DType::kFloat32, kNoTimeout);
    return rank.api.num_copies;
  };
  CHECK_EQ(all_gather(nowhere(8)), 1);
  CHECK_EQ(all_gather(nowhere(1)), 0);  // in place
  CHECK_EQ(all_gather(nowhere(8)), 1);
}

TEST(sums_of_views_load_whole_packs) {
  for (const char* algorithm : {"ring", "direct"}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kPremulSum}) {
      for (const std::size_t offset : {0, 4, 8, 12}) {
        for (const std::size_t nbytes : {100 * kKiB, 300 * kMiB}) {
          Rank rank(4, algorithm, Layout{});
          std::byte* data = nowhere(0) + offset;
          const Reduce reduce{DType::kFloat32, op, 2.0};
          rank.all_reduce(data, data, nbytes / 4, reduce, kNoTimeout);
          rank.reduce(data, data, nbytes / 4, reduce, 0, kNoTimeout);
          CHECK(rank.api.num_sums > 0);
          CHECK(rank.api.aligned_alike);
        }
      }
    }
  }
}
