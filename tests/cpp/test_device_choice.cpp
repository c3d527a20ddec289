// The tables of what a device's collectives go by, line by line and against their arithmetic.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "errors.h"
#include "gpu/streams/device_collectives.h"
#include "plans.h"

namespace {

using namespace ringcomm;
using enum Collective;
using streams::ByKernel;
using streams::DeviceExecutor;

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;

struct Line {
  Collective collective;
  DType dtype;
  int ranks;
  std::size_t nbytes;
  AlgorithmFamily family;

  std::string text() const {
    return std::string(to_string(collective)) + " of " + std::to_string(nbytes) + " bytes of " +
           ringcomm::name(dtype) + " among " + std::to_string(ranks);
  }
};

void check_lines(const std::vector<Line>& lines,
                 AlgorithmFamily (*family)(Collective, std::size_t, DType, int)) {
  for (const Line& line : lines) {
    const std::size_t count = line.nbytes / element_size(line.dtype);
    CHECK_WITH(family(line.collective, count, line.dtype, line.ranks) == line.family, line.text());
  }
}

}  // namespace

TEST(kernels) {
  constexpr DType f32 = DType::kFloat32, bf16 = DType::kBFloat16;
  check_lines({{kAllReduce, f32, 2, 8 * kMiB, AlgorithmFamily::kOneShot},
               {kAllReduce, f32, 2, 8 * kMiB + 4, AlgorithmFamily::kRing},
               {kAllReduce, f32, 3, 8 * kMiB, AlgorithmFamily::kOneShot},
               {kAllReduce, f32, 4, 1 * kMiB, AlgorithmFamily::kOneShot},
               {kAllReduce, f32, 4, 1 * kMiB + 4, AlgorithmFamily::kDoubling},
               {kAllReduce, f32, 4, 8 * kMiB, AlgorithmFamily::kDoubling},
               {kAllReduce, f32, 4, 8 * kMiB + 4, AlgorithmFamily::kRing},
               {kAllReduce, f32, 6, 4 * kMiB, AlgorithmFamily::kOneShot},
               {kAllReduce, f32, 6, 4 * kMiB + 4, AlgorithmFamily::kRing},
               {kAllReduce, f32, 8, 512 * kKiB, AlgorithmFamily::kOneShot},
               {kAllReduce, f32, 8, 512 * kKiB + 4, AlgorithmFamily::kDoubling},
               {kAllReduce, f32, 8, 8 * kMiB, AlgorithmFamily::kDoubling},
               {kAllReduce, f32, 16, 8 * kMiB + 4, AlgorithmFamily::kRing},
               {kAllReduce, DType::kFloat64, 8, 1024 * kMiB, AlgorithmFamily::kRing},
               // What rounds is added at once, at every size.
               {kAllReduce, bf16, 3, 8 * kMiB, AlgorithmFamily::kOneShot},
               {kAllReduce, bf16, 3, 8 * kMiB + 2, AlgorithmFamily::kDirect},
               {kAllReduce, bf16, 8, 4 * kMiB, AlgorithmFamily::kOneShot},
               {kAllReduce, bf16, 8, 4 * kMiB + 2, AlgorithmFamily::kDirect},
               {kAllReduce, DType::kFloat16, 16, 1024 * kMiB, AlgorithmFamily::kDirect},
               {kAllReduce, DType::kFloat8E4M3FN, 4, 64 * kMiB, AlgorithmFamily::kDirect},
               {kReduceScatter, bf16, 8, 64 * kMiB, AlgorithmFamily::kDirect},
               {kReduceScatter, f32, 8, 64 * kMiB, AlgorithmFamily::kRing},
               {kReduce, bf16, 8, 64 * kMiB, AlgorithmFamily::kDirect},
               {kReduce, f32, 8, 1024, AlgorithmFamily::kRing},
               // Integers do not, and what is only moved does not.
               {kAllReduce, DType::kInt8, 8, 64 * kMiB, AlgorithmFamily::kRing},
               {kReduceScatter, DType::kInt16, 8, 64 * kMiB, AlgorithmFamily::kRing},
               {kAllGather, bf16, 8, 2 * kMiB, AlgorithmFamily::kRing},
               {kAllGather, f32, 8, 1024 * kMiB, AlgorithmFamily::kRing},
               {kBroadcast, bf16, 8, 1 * kMiB, AlgorithmFamily::kDirect},
               {kBroadcast, bf16, 8, 1 * kMiB + 2, AlgorithmFamily::kRing},
               {kAllToAll, bf16, 8, 64 * kMiB, AlgorithmFamily::kDirect}},
              family_by_kernel);
}

// 5 MB for each rank.
TEST(messages) {
  check_lines({{kAllReduce, DType::kFloat32, 4, 16 * kMiB, AlgorithmFamily::kDirect},
               {kAllReduce, DType::kFloat32, 4, 32 * kMiB, AlgorithmFamily::kRing},
               {kAllReduce, DType::kBFloat16, 4, 1024 * kMiB, AlgorithmFamily::kDirect},
               {kBroadcast, DType::kBFloat16, 4, 8 * kMiB, AlgorithmFamily::kDirect},
               {kBroadcast, DType::kFloat32, 4, 16 * kMiB, AlgorithmFamily::kRing}},
              family_by_messages);
}

namespace {

// Seconds of an all-reduce by the arithmetic that the table's header has.
double seconds(const char* algorithm, int ranks, double nbytes) {
  constexpr double kAction = 5.1e-6, kBandwidth = 370e9;
  const auto plan = find_algorithm(kAllReduce, algorithm)->generate;
  int most_actions = 0, most_sent = 0, num_chunks = 1;
  for (int r = 0; r < ranks; ++r) {
    const Plan its = plan(r, {.world_size = ranks});
    num_chunks = its.num_chunks;
    most_actions = std::max(most_actions, static_cast<int>(its.steps.size()) + 1);
    most_sent = std::max(most_sent, chunks_sent(its));
  }
  if (algorithm == std::string("direct")) most_actions = 2 * ranks - 1;
  return most_actions * kAction + most_sent * nbytes / num_chunks / kBandwidth;
}

constexpr const char* name_of(AlgorithmFamily family) {
  return family == AlgorithmFamily::kOneShot    ? "one_shot"
         : family == AlgorithmFamily::kDoubling ? "recursive_doubling"
         : family == AlgorithmFamily::kDirect   ? "direct"
                                                : "ring";
}

}  // namespace

TEST(no_choice_is_far_from_the_best) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (double nbytes = 128 * kKiB; nbytes <= 1024 * kMiB; nbytes *= 2) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        std::vector<const char*> allowed = {"one_shot", "direct"};  // that round once
        if (dtype == DType::kFloat32) allowed = {"one_shot", "recursive_doubling", "ring"};
        double best = INFINITY;
        for (const char* each : allowed) best = std::min(best, seconds(each, ranks, nbytes));
        const auto count = static_cast<std::size_t>(nbytes) / element_size(dtype);
        const AlgorithmFamily family = family_by_kernel(kAllReduce, count, dtype, ranks);
        CHECK_WITH(seconds(name_of(family), ranks, nbytes) <= 1.35 * best,
                   std::to_string(ranks) + " ranks, " + std::to_string(nbytes) +
                       " bytes: " + name_of(family));
      }
    }
  }
}

namespace {

// Notes what calls go by. It finds out by its first call whether that is kernels.
class Calls : public streams::DeviceCollectives {
 public:
  Calls(int world_size, bool has_kernels)
      : DeviceCollectives(0, world_size, {}), has_kernels_(has_kernels) {}

  std::vector<std::string> algorithms;

 private:
  void enqueue_program(Call call, const Program&, std::span<const Chunk>, const Reduction&,
                       Timeout) override {
    algorithms.emplace_back(ringcomm::algorithms()[call.algorithm].name);
  }
  void prepare_choice(Timeout) override { by_kernels_ = has_kernels_; }
  bool goes_by_kernels() const override { return by_kernels_; }

  const bool has_kernels_;
  bool by_kernels_ = false;
};

std::vector<std::string> algorithms_of_calls(bool has_kernels) {
  constexpr Collectives::Timeout kNoTimeout{0};
  Calls calls(8, has_kernels);
  const Reduce sum{DType::kFloat32, ReduceOp::kSum};
  for (const std::size_t nbytes : {512 * kKiB, 4 * kMiB, 64 * kMiB}) {
    calls.all_reduce(nullptr, nullptr, nbytes / 4, sum, kNoTimeout);
  }
  calls.all_reduce(nullptr, nullptr, 64 * kMiB, {DType::kBFloat16, ReduceOp::kSum}, kNoTimeout);
  calls.all_gather(nullptr, std::vector<Output>(8, {nullptr, kMiB}), DType::kBFloat16, kNoTimeout);
  return calls.algorithms;
}

}  // namespace

TEST(calls_go_by_what_the_tables_say) {
  using Names = std::vector<std::string>;
  CHECK((algorithms_of_calls(true) ==
         Names{"one_shot", "recursive_doubling", "ring", "direct", "ring"}));
  CHECK((algorithms_of_calls(false) == Names{"direct", "direct", "ring", "direct", "direct"}));
}

TEST(what_goes_by_kernels) {
  using streams::by_kernel;
  for (const bool on : {false, true}) {
    CHECK((by_kernel(DeviceExecutor::kMessages, on) == ByKernel{.eager = false, .lanes = false}));
    CHECK((by_kernel(DeviceExecutor::kFused, on) == ByKernel{.eager = true, .lanes = true}));
    CHECK((by_kernel(DeviceExecutor::kAuto, on) == ByKernel{.eager = on, .lanes = false}));
  }
  CHECK(!streams::kAutoIsFused);
}

TEST(it_is_said_what_auto_takes_and_how_to_ask_for_more) {
  using streams::describe;
  for (const bool on : {false, true}) {
    const std::string text = describe(DeviceExecutor::kAuto, on);
    CHECK_CONTAINS(text, on ? "auto: what is eager is one kernel, between GPUs with NVLink"
                            : "auto: every collective goes as messages.");
    CHECK_CONTAINS(text, "RINGCOMM_EXECUTOR=fused asks for");
    CHECK_CONTAINS(describe(DeviceExecutor::kMessages, on), "messages: every collective");
    CHECK_CONTAINS(describe(DeviceExecutor::kFused, on), "fused: a collective is one kernel");
  }
}
