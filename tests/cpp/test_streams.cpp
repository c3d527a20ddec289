// The executor on simulated streams: random collectives in random orders of execution, and
// what happens without each of its waits.
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "errors.h"
#include "stream_ranks.h"

namespace {

using namespace ringcomm;
using cases::Buffer;
using simulated::Rank;
using streams::Layout;

constexpr std::chrono::milliseconds kNoTimeout{0};

struct Setting {
  int world_size;
  std::string algorithm;
  Layout layout;
  int num_collectives;

  std::string name() const {
    return std::to_string(world_size) + " ranks, " + std::to_string(layout.num_channels) +
           " channels, " + std::to_string(layout.slices_in_flight) + " slices of " +
           std::to_string(layout.slice_nbytes) + " bytes";
  }
};

Setting random_setting(std::mt19937_64& random) {
  Setting s;
  s.world_size = 2 + static_cast<int>(random() % 7);
  s.algorithm = algorithms()[random() % algorithms().size()].name;
  // All the slots that a premul_sum of 8 ranks takes are 14 pieces of 256 bytes.
  s.layout = {.num_channels = 1 + static_cast<int>(random() % 4),
              .slices_in_flight = 2 + static_cast<int>(random() % 3),
              .slice_nbytes = (14 + random() % 4) * streams::kAlignment,
              .min_slice_nbytes = random() % 2 ? streams::kAlignment : 1};
  s.num_collectives = 1 + static_cast<int>(random() % 3);
  return s;
}

// Devices have no barrier, and refuse what is made of chunks whose counts they do not know.
bool runs(Collective collective, const Setting& setting) {
  const Algorithm* algorithm = find_algorithm(collective, setting.algorithm);
  return collective != Collective::kBarrier && !(algorithm && algorithm->needs_all_counts);
}

cases::Case random_case(const Setting& setting, std::mt19937_64& random) {
  Collective collective;
  do {
    collective = cases::kCollectives[random() % cases::kCollectives.size()];
  } while (!runs(collective, setting));
  const std::size_t nbytes = random() % 4 == 0 ? random() % 100 : random() % (16 << 10);
  return cases::random_case(collective, setting.world_size, nbytes, random);
}

// Runs one random schedule. False: a result is wrong. Throws if it deadlocks.
bool run_schedule(std::uint64_t seed, int dropped = -1) {
  std::mt19937_64 random(seed);
  const Setting setting = random_setting(random);
  simulated::Simulator simulator(random());
  const Selection selection = Selection::named(setting.algorithm);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < setting.world_size; ++r) {
    ranks.push_back(std::make_unique<Rank>(simulator, r, setting.world_size, selection,
                                           setting.layout, dropped));
  }
  std::deque<cases::Case> kept;
  std::deque<cases::Part> parts;
  bool right = true;
  for (int i = 0; i < setting.num_collectives; ++i) {
    // Often what was done before is done again, with other memory.
    const bool again = i > 0 && random() % 2;
    const cases::Case& c = again ? kept.back() : kept.emplace_back(random_case(setting, random));
    for (auto& rank : ranks) {
      cases::Part& part = parts.emplace_back(c, rank->rank(), setting.world_size);
      rank->on_user_stream([&part] { part.fill(); });
      part.call(*rank, kNoTimeout);
      rank->on_user_stream([&part, &right] {
        right = right && part.right();
        part.poison();
      });
    }
  }
  simulator.run();
  return right;
}

std::string describe(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Setting setting = random_setting(random);
  return "seed " + std::to_string(seed) + ": " + setting.name();
}

}  // namespace

TEST(every_order_of_execution_gives_the_right_results) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    try {
      CHECK_WITH(run_schedule(seed), describe(seed));
    } catch (const std::exception& error) {
      CHECK_WITH(false, describe(seed) + ": " + error.what());
    }
  }
}

// A wait that is not missed in so many schedules is not needed.
TEST(without_any_one_wait_results_go_wrong) {
  for (int wait = 0; wait < streams::kNumWaits; ++wait) {
    bool missed = false;
    for (std::uint64_t seed = 0; seed < 2000 && !missed; ++seed) missed = !run_schedule(seed, wait);
    CHECK_WITH(missed, "wait " + std::to_string(wait));
  }
}

// Two ranks that exchange 100 chunks at once, each a piece of scratch of its own.
TEST(a_plan_that_needs_too_much_scratch_says_how_much_would_do) {
  constexpr int kChunks = 100;
  const auto plan_of = [](int peer) {
    const Transfer send{peer, 0, kChunks}, recv{peer, 0, kChunks, /*reduce=*/true};
    return Plan{kChunks, {{{send}, {recv}}}};
  };
  Selection selection;
  selection.choices[Collective::kAllReduce] = {
      "mine", [&](int, int) { return std::vector<Plan>{plan_of(1), plan_of(0)}; }};
  simulated::Simulator simulator(0);
  std::vector<float> data(10'000);
  const auto reduce = [&](std::size_t slice_nbytes) {
    Rank rank(simulator, 0, 2, selection, {.slice_nbytes = slice_nbytes});
    rank.all_reduce(data.data(), data.data(), data.size(), {DType::kFloat32, ReduceOp::kSum},
                    kNoTimeout);
  };
  const std::string text = check::error_of(ErrorKind::kInvalidArgument, [&] { reduce(4096); });
  CHECK_CONTAINS(text, "the plan needs 100 pieces of scratch for each slice");
  CHECK_CONTAINS(text, "slice_nbytes=51200");
  reduce(51200);
}

TEST(a_plan_that_adds_more_at_once_than_a_kernel_can_is_refused) {
  simulated::Simulator simulator(0);
  std::vector<float> data(100);
  const auto reduce = [&](const char* algorithm) {
    Rank rank(simulator, 0, 65, Selection::named(algorithm), {});
    rank.all_reduce(data.data(), data.data(), data.size(), {DType::kFloat32, ReduceOp::kSum},
                    kNoTimeout);
  };
  const std::string text = check::error_of(ErrorKind::kInvalidArgument, [&] { reduce("direct"); });
  CHECK_CONTAINS(text,
                 "this plan adds 65 inputs in one step, and a kernel adds at most 64 at once");
  reduce("ring");
}
