// The fused kernel's source on the host: random collectives on threads, and what happens without
// each of the waits and barriers that it is made of.
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "errors.h"
#include "fused_ranks.h"
#include "reference.h"

namespace {

using namespace ringcomm;
using fused_ranks::Proof;
using fused_ranks::Rank;
using fused_ranks::World;

constexpr std::chrono::milliseconds kNoTimeout{0};

struct Scenario {
  std::uint64_t seed;
  fused::Layout layout;
  std::string algorithm;
  int threads_per_block;
  std::vector<cases::Case> calls;  // one after the other

  std::string name() const {
    return "seed " + std::to_string(seed) + ", " + algorithm + ", " +
           std::to_string(layout.num_lanes) + " lanes of " + std::to_string(threads_per_block) +
           " threads, outboxes of " + std::to_string(layout.outbox_nbytes) + " bytes";
  }
};

// Devices have no barrier, and refuse what is made of chunks whose counts they do not know.
bool runs(Collective collective, const std::string& name) {
  const Algorithm* algorithm = find_algorithm(collective, name);
  return collective != Collective::kBarrier && !(algorithm && algorithm->needs_all_counts);
}

Scenario random_scenario(std::uint64_t seed, int num_calls, std::size_t most_nbytes) {
  std::mt19937_64 random(seed);
  Scenario s;
  s.seed = seed;
  const int world_size = 2 + static_cast<int>(random() % 7);
  s.algorithm = algorithms()[random() % algorithms().size()].name;
  s.threads_per_block = 1 + static_cast<int>(random() % 3);
  // A direct exchange of 8 ranks needs 14 slots.
  s.layout = {.world_size = world_size,
              .num_lanes = 1 + static_cast<int>(random() % 3),
              .outbox_nbytes = (16 + random() % 32) * fused::kLine,
              .eager_nbytes = random() % 3 * 2 * fused::kEagerUnit,
              .eager_packs = 1 + random() % 4};
  s.layout.hop_nbytes = random() % 3 / 2 * 4 * fused::kEagerUnit;
  s.layout.eager_lanes = 1 + static_cast<int>(random() % s.layout.num_lanes);
  for (int i = 0; i < num_calls; ++i) {
    Collective collective;
    do {
      collective = cases::kCollectives[random() % cases::kCollectives.size()];
    } while (!runs(collective, s.algorithm));
    const std::size_t nbytes = random() % 4 == 0 ? random() % 100 : random() % most_nbytes;
    s.calls.push_back(cases::random_case(collective, world_size, nbytes, random));
  }
  return s;
}

// Every rank makes all calls, without a wait in between, and checks the results.
void run(World& world, const Scenario& scenario) {
  const int n = scenario.layout.world_size;
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(world, r, Selection::named(scenario.algorithm), scenario.seed + r);
      std::deque<cases::Part> parts;
      for (const cases::Case& call : scenario.calls) parts.emplace_back(call, r, n).fill();
      for (cases::Part& part : parts) part.call(rank, kNoTimeout);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        CHECK_WITH(parts[i].right(), "rank " + std::to_string(r) + ", call " + std::to_string(i) +
                                         ": " + scenario.calls[i].name(n) + "; " + scenario.name());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// For calls that are made again and again.
std::uint64_t num_seeds() { return check::from_environment("RINGCOMM_TEST_TRIALS", 8); }

}  // namespace

TEST(random_collectives) {
  constexpr int kCallsAtOnce = 10;
  const long num_calls = check::from_environment("RINGCOMM_TEST_CALLS", 500);
  for (int i = 0; i < num_calls / kCallsAtOnce; ++i) {
    const Scenario scenario = random_scenario(i, kCallsAtOnce, 16 << 10);
    World world(scenario.layout, scenario.threads_per_block);
    run(world, scenario);
  }
}

namespace {

// The races of the first run that shows any.
std::set<std::string> races_without(std::optional<fused::Why> left_out, bool flags_order,
                                    int most_runs) {
  for (int i = 0; i < most_runs; ++i) {
    const Scenario scenario = random_scenario(1000 + i, 3, 3 << 10);
    World world(scenario.layout, scenario.threads_per_block);
    world.proof = std::make_unique<Proof>(scenario.layout.world_size * world.num_threads());
    world.proof->left_out = left_out;
    world.proof->flags_order = flags_order;
    run(world, scenario);
    if (const auto races = world.proof->record.races(); !races.empty()) return races;
  }
  return {};
}

}  // namespace

// Again and again, so that inboxes are reused, and of every length.
TEST(small_calls_go_eagerly) {
  constexpr Collective kEager[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                   Collective::kAllGather};
  for (std::uint64_t seed = 0; seed < num_seeds(); ++seed) {
    std::mt19937_64 random(seed);
    Scenario s = random_scenario(seed, 0, 1);
    s.layout.eager_nbytes = 1024;
    for (int i = 0; i < 30; ++i) {
      s.calls.push_back(
          cases::random_case(kEager[random() % 3], s.layout.world_size, random() % 1024, random));
    }
    World world(s.layout, s.threads_per_block);
    run(world, s);
    std::uint32_t calls;
    std::memcpy(&calls, world.memory[0].get() + s.layout.eager_calls_at(0), sizeof(calls));
    CHECK(calls > 25);  // but for those of nothing
  }
}

// Beside eager ones, so that both reuse their inboxes; also with fewer packs than ranks.
TEST(somewhat_larger_calls_take_two_hops) {
  for (std::uint64_t seed = 0; seed < num_seeds(); ++seed) {
    std::mt19937_64 random(seed);
    Scenario s = random_scenario(seed, 0, 1);
    s.layout.eager_nbytes = seed % 2 * 1024;
    s.layout.hop_nbytes = 2 * fused::kEagerUnit;
    const std::size_t most = s.layout.hop_nbytes * s.layout.world_size;
    for (int i = 0; i < 30; ++i) {
      const std::size_t nbytes = random() % (i % 3 == 0 ? 200 : most);
      s.calls.push_back(
          cases::random_case(Collective::kAllReduce, s.layout.world_size, nbytes, random));
    }
    World world(s.layout, s.threads_per_block);
    run(world, s);
    std::uint32_t calls;
    std::memcpy(&calls, world.memory[0].get() + s.layout.hop_calls_at(0), sizeof(calls));
    CHECK(calls > (seed % 2 == 0 ? 20 : 4));
  }
}

namespace {

// Values whose sums are rounded, so that another order shows; `reduced` is what reproducible groups
// promise.
cases::Case rounded_case(Collective collective, DType dtype, int world_size, std::size_t count,
                         std::mt19937_64& random) {
  cases::Case c{.collective = collective, .dtype = dtype};
  c.counts.assign(collective == Collective::kReduceScatter ? world_size : 1, count);
  c.inputs.assign(world_size, cases::Pattern(cases::kPeriod));
  c.reduced.resize(cases::kPeriod);
  for (std::size_t i = 0; i < cases::kPeriod; ++i) {
    std::vector<std::uint64_t> values;
    for (int r = 0; r < world_size; ++r) {
      const double value = std::ldexp(1.0 + static_cast<double>(random() % 1000) / 999,
                                      static_cast<int>(random() % 20));
      values.push_back(reference::from_double(dtype, random() % 2 == 0 ? value : -value));
      c.inputs[r][i] = values.back();
    }
    c.reduced[i] = reference::reduce({.dtype = dtype, .op = c.op}, values);
  }
  return c;
}

}  // namespace

// By kernels for plans, eagerly, and in two hops.
TEST(sums_are_in_pairs) {
  enum { kLanes, kEagerly, kInTwoHops, kWays };
  for (int way = 0; way < kWays; ++way) {
    for (const int world_size : {2, 3, 5, 8, 11, 16}) {
      std::mt19937_64 random(16 * way + world_size);
      Scenario s = random_scenario(1, 0, 1);
      s.algorithm = "direct";
      s.layout.world_size = world_size;
      s.layout.outbox_nbytes = 64 * fused::kLine;
      s.layout.eager_nbytes = way == kEagerly ? 2 * fused::kEagerUnit : 0;
      s.layout.hop_nbytes = way == kInTwoHops ? 2 * fused::kEagerUnit : 0;
      for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
        const std::size_t count = way == kEagerly ? 61 : 61 * world_size;
        s.calls.push_back(rounded_case(Collective::kAllReduce, dtype, world_size, count, random));
        s.calls.push_back(rounded_case(Collective::kReduceScatter, dtype, world_size, 61, random));
      }
      World world(s.layout, s.threads_per_block);
      run(world, s);
      const auto calls = [&](std::size_t at) {
        std::uint32_t number;
        std::memcpy(&number, world.memory[0].get() + at, sizeof(number));
        return number;
      };
      CHECK_EQ(calls(s.layout.eager_calls_at(0)) > 0, way == kEagerly);
      CHECK_EQ(calls(s.layout.hop_calls_at(0)) > 0, way == kInTwoHops);
    }
  }
}

TEST(everything_is_ordered) {
  for (const std::string& race : races_without(std::nullopt, true, 40)) CHECK_WITH(false, race);
}

TEST(no_wait_and_no_barrier_can_be_left_out) {
  for (const fused::Why why : fused::kReasons) {
    CHECK_WITH(!races_without(why, true, 100).empty(),
               "nothing is missed without reason " + std::to_string(static_cast<int>(why)));
  }
  CHECK(!races_without(std::nullopt, false, 10).empty());
}

namespace {

// Rank 1 does not come. The host finds out, and its word ends the others' waits.
void check_giving_up(std::size_t eager_nbytes, std::size_t hop_nbytes) {
  const fused::Layout layout{.world_size = 3,
                             .num_lanes = 2,
                             .outbox_nbytes = 1024,
                             .eager_lanes = 2,
                             .eager_nbytes = eager_nbytes,
                             .hop_nbytes = hop_nbytes};
  World world(layout, 2);
  std::vector<std::thread> threads;
  for (const int r : {0, 2}) {
    threads.emplace_back([&, r] {
      Rank rank(world, r, Selection::named("direct"), r);
      std::vector<float> data(4000, 1.0f);
      std::thread host([&] {
        const std::atomic_ref waits_for(rank.control().waits_for[0]);
        while (waits_for.load(std::memory_order_relaxed) != 1 + 1) sched_yield();
        std::atomic_ref(rank.control().aborted).store(1, std::memory_order_relaxed);
      });
      rank.all_reduce(data.data(), data.data(), data.size(), {DType::kFloat32, ReduceOp::kSum},
                      kNoTimeout);
      host.join();
      CHECK(rank.gave_up());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST(a_wait_can_be_given_up_and_names_the_awaited_rank) {
  check_giving_up(0, 0);
  check_giving_up(16 << 10, 0);
  check_giving_up(0, 16 << 10);
}

TEST(what_is_too_large_for_a_kernel_raises) {
  const fused::Layout layout{.world_size = 9, .num_lanes = 1, .outbox_nbytes = 1024};
  World world(layout, 1);
  Rank rank(world, 0, Selection::named("direct"), 0);
  std::vector<float> data(9, 1.0f);
  const std::vector<Input> inputs(9, {data.data(), 1});
  const std::vector<Output> outputs(9, {data.data(), 1});
  CHECK_CONTAINS(
      check::error_of(ErrorKind::kInvalidArgument,
                      [&] { rank.all_to_all(inputs, outputs, DType::kFloat32, kNoTimeout); }),
      "its plan has 81 chunks");
  CHECK_CONTAINS(check::error_of(ErrorKind::kInvalidArgument,
                                 [&] {
                                   rank.all_reduce(data.data(), data.data(), 9,
                                                   {DType::kFloat32, ReduceOp::kSum}, kNoTimeout);
                                 }),
                 "slots, and an outbox has 1024 bytes");
}
