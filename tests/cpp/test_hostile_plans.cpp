// Plans that are wrong, or larger than can be looked at, are refused at once, and the error says
// what was passed and what would do. Nothing that looks at plans crashes on any of them.
#include <functional>
#include <limits>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/programs.h"
#include "memory_store.h"
#include "plan/bitwise.h"
#include "plan/program.h"
#include "plan/ring.h"
#include "plan/simulate.h"
#include "plan/verify.h"
#include "plans.h"

namespace {

using namespace ringcomm;
using enum Collective;

constexpr int kLargest = std::numeric_limits<int>::max();
constexpr int kMillion = 1'000'000;
constexpr int kMany = 200'000;

// What verify() makes of the plans: nothing, PlanError or std::invalid_argument with this text.
enum Kind { kFine, kPlanError, kInvalid };
struct Hostile {
  const char* what;
  Collective collective;
  std::function<std::vector<Plan>()> plans;
  Kind kind;
  std::string text;
  int root = 0;
};

Step sends(std::vector<Transfer> transfers) { return {std::move(transfers), {}}; }
Step recvs(std::vector<Transfer> transfers) { return {{}, std::move(transfers)}; }

// The sum of two ranks in one step, of chunks first, ..., first+count-1.
Step swap(int rank, int first = 0, int count = 1) {
  return {{{1 - rank, first, count, false}}, {{1 - rank, first, count, true}}};
}

std::function<std::vector<Plan>()> pair(Plan first, Plan second) {
  return [=] { return std::vector{first, second}; };
}

// Rank 0 sends one message to rank 1, which expects the same.
std::function<std::vector<Plan>()> one_message(int num_chunks, Transfer sent) {
  Transfer received = sent;
  received.peer = 0;
  return pair({num_chunks, {sends({sent})}}, {num_chunks, {recvs({received})}});
}

// Both ranks do step_of(rank) over and over, and then add.
std::function<std::vector<Plan>()> over_and_over(int times,
                                                 const std::function<Step(int rank)>& step_of) {
  return [=] {
    return plans_of(2, [&](int rank) {
      Plan plan{1, std::vector<Step>(times, step_of(rank))};
      plan.steps.push_back(swap(rank));
      return plan;
    });
  };
}

Step signal(int rank) {
  const std::vector<Transfer> other{{1 - rank, 0, 0, false}};
  return rank == 0 ? sends(other) : recvs(other);
}

// Sums along the even ranks, which begin elsewhere for each chunk: no two consecutive ranks are in
// one, and no two chunks have the same.
std::vector<Plan> scattered(int world_size, int num_chunks) {
  std::vector<Plan> plans(world_size, Plan{num_chunks, {}});
  for (int i = 0; i + 2 < world_size; i += 2) {
    for (int c = 0; c < num_chunks; ++c) {
      const int from = (2 * c + i) % world_size, to = (from + 2) % world_size;
      plans[from].steps.push_back(sends({{to, c, 1, false}}));
      plans[to].steps.push_back(recvs({{from, c, 1, true}}));
    }
  }
  return plans;
}

std::vector<Hostile> hostile_plans() {
  const Plan idle{1, {}};
  return {
      {"a negative peer", kAllReduce, one_message(1, {-1, 0, 1, false}), kPlanError,
       "rank 0, step 0: sends chunk 0 to rank -1, in a group of 2"},
      {"a peer too large", kAllReduce, one_message(1, {2, 0, 1, false}), kPlanError,
       "rank 0, step 0: sends chunk 0 to rank 2, in a group of 2"},
      {"the largest peer", kBarrier, one_message(0, {kLargest, 0, 0, false}), kPlanError,
       "sends no chunk to rank 2147483647, in a group of 2"},
      {"a send to itself", kAllReduce, one_message(1, {0, 0, 1, false}), kPlanError,
       "rank 0, step 0: sends chunk 0 to rank 0, which is itself"},
      {"a receive from itself", kReduce, pair({1, {recvs({{0, 0, 1, true}})}}, idle), kPlanError,
       "rank 0, step 0: receives chunk 0 from rank 0, which is itself"},
      {"fewer chunks than none", kAllReduce, pair({-1, {}}, {-1, {}}), kInvalid,
       "all_reduce takes at least one chunk, got -1 chunks"},
      {"no chunks", kBroadcast, pair({0, {}}, {0, {}}), kInvalid,
       "broadcast takes at least one chunk, got 0 chunks"},
      {"chunks of a barrier", kBarrier, pair({1, {}}, {1, {}}), kInvalid,
       "barrier takes no chunks, got 1 chunks"},
      {"ten million chunks", kAllReduce, pair({10 * kMillion, {}}, {10 * kMillion, {}}), kPlanError,
       "all_reduce of 10000000 chunks among 2 ranks has 20000000 results, and plans may have "
       "2097152; at most 1048576 chunks would do"},
      {"as many chunks as can be said", kAllReduce, pair({kLargest, {}}, {kLargest, {}}),
       kPlanError, "has 4294967294 results, and plans may have 2097152"},
      {"as many chunks at one rank", kReduce, pair({kLargest, {}}, {kLargest, {}}), kPlanError,
       "reduce of 2147483647 chunks among 2 ranks has 2147483647 results, and plans may have "
       "2097152; at most 2097152 chunks would do"},
      {"as many chunks of one rank", kAllReduce, [] { return std::vector{Plan{kLargest, {}}}; },
       kPlanError, "at most 2097152 chunks would do"},
      {"chunks that ranks cannot share", kAllGather, pair({3, {}}, {3, {}}), kInvalid,
       "all_gather takes a multiple of world_size chunks, got 3 chunks for a world_size of 2"},
      {"chunks of another collective", kAllToAll, pair({2, {}}, {2, {}}), kInvalid,
       "all_to_all takes world_size*world_size chunks, got 2 chunks for a world_size of 2"},
      {"different numbers of chunks", kAllReduce, pair({1, {}}, {2, {}}), kPlanError,
       "rank 1 has a plan of 2 chunks, rank 0 one of 1"},
      {"a different and negative number of chunks", kAllReduce, pair({1, {}}, {-7, {}}), kPlanError,
       "rank 1 has a plan of -7 chunks, and 0 is the least"},
      {"a negative chunk", kAllReduce, one_message(4, {1, -1, 1, false}), kPlanError,
       "rank 0, step 0: sends chunk -1 to rank 1, of 4 chunks"},
      {"a negative number of chunks", kAllReduce, one_message(4, {1, 0, -1, false}), kPlanError,
       "rank 0, step 0: sends no chunk to rank 1, of 4 chunks"},
      {"chunks past the end", kAllReduce, one_message(4, {1, 3, 2, false}), kPlanError,
       "rank 0, step 0: sends chunks 3-4 to rank 1, of 4 chunks"},
      {"a range that overflows", kAllReduce, one_message(4, {1, kLargest, kLargest, false}),
       kPlanError, "sends chunks 2147483647-4294967293 to rank 1, of 4 chunks"},
      {"a range from the least number", kAllReduce,
       one_message(4, {1, std::numeric_limits<int>::min(), 1, false}), kPlanError,
       "sends chunk -2147483648 to rank 1, of 4 chunks"},
      {"too many chunks to move", kAllReduce,
       [] {
         return plans_of(2, [](int rank) {
           return Plan{1 << 20, std::vector<Step>(3, swap(rank, 0, 1 << 20))};
         });
       },
       kPlanError,
       "the plans have 6291456 chunks to send, and plans may have 2097152; fewer and larger "
       "chunks"},
      {"too many chunks to receive alone", kReduce,
       pair({1 << 20, std::vector<Step>(3, recvs({{1, 0, 1 << 20, true}}))}, {1 << 20, {}}),
       kPlanError, "the plans have 3145728 chunks to receive, and plans may have 2097152"},
      {"too many messages", kAllReduce, over_and_over((1 << 21) + 1, signal), kPlanError,
       "the plans have 4194308 steps, and plans may have 2097152; fewer steps or ranks"},
      {"too many transfers of a step", kAllReduce,
       [] {
         const std::vector<Transfer> all(3 << 20, {1, 0, 0, false});
         return std::vector{Plan{1, {sends(all)}}, Plan{1, {}}};
       },
       kPlanError, "the plans have 3145728 chunks to send, and plans may have 2097152"},
      {"a million empty steps", kAllReduce, over_and_over(kMillion, [](int) { return Step{}; }),
       kFine, ""},
      {"a million steps", kAllReduce, over_and_over(kMillion, signal), kFine, ""},
      {"a million transfers in a step", kAllReduce,
       over_and_over(1,
                     [](int rank) {
                       const std::vector<Transfer> all(kMillion, {1 - rank, 0, 0, false});
                       return rank == 0 ? sends(all) : recvs(all);
                     }),
       kFine, ""},
      {"many copies of one chunk", kBroadcast,
       [] {
         return std::vector{Plan{1, std::vector<Step>(kMany, sends({{1, 0, 1, false}}))},
                            Plan{1, std::vector<Step>(kMany, recvs({{0, 0, 1, false}}))}};
       },
       kFine, ""},
      {"many sends before a receive", kAllReduce,
       [] {
         std::vector<Plan> plans{{1, std::vector<Step>(kMany, sends({{1, 0, 1, false}}))},
                                 {1, {sends({{2, 0, 1, false}})}},
                                 {1, {recvs({{1, 0, 1, true}})}}};
         for (int i = 0; i < kMany; ++i) plans[1].steps.push_back(recvs({{0, 0, 1, false}}));
         plans[1].steps.push_back(sends({{2, 0, 1, false}}));
         plans[2].steps.push_back(recvs({{1, 0, 1, true}}));
         plans[2].steps.push_back(sends({{0, 0, 1, false}, {1, 0, 1, false}}));
         for (const int rank : {0, 1}) plans[rank].steps.push_back(recvs({{2, 0, 1, false}}));
         return plans;
       },
       kFine, ""},
      {"a circle of waiting ranks", kAllReduce,
       [] {
         return plans_of(2, [](int rank) {
           return Plan{1, {recvs({{1 - rank, 0, 1, true}}), sends({{1 - rank, 0, 1, false}})}};
         });
       },
       kPlanError, "deadlock: rank 0 at step 0 waits to receive chunk 0 from rank 1"},
      {"a send that no rank receives", kAllReduce, pair({1, {sends({{1, 0, 1, false}})}}, idle),
       kPlanError, "rank 0, step 0: sends chunk 0 to rank 1, which does not receive it"},
      {"a receive that no rank sends", kAllReduce, pair(idle, {1, {recvs({{0, 0, 1, true}})}}),
       kPlanError, "rank 1, step 0: receives chunk 0 from rank 0, which does not send it"},
      {"a message of other chunks", kAllReduce,
       pair({2, {sends({{1, 0, 1, false}})}}, {2, {recvs({{0, 0, 2, true}})}}), kPlanError,
       "which at its step 0 receives chunks 0-1 from it"},
      {"a contribution twice in a step", kReduce,
       pair({1, {recvs({{1, 0, 1, true}, {1, 0, 1, true}})}},
            {1, {sends({{0, 0, 1, false}, {0, 0, 1, false}})}}),
       kPlanError, "adds chunk 0 from rank 1, which counts the contribution of rank 1 twice"},
      {"a contribution in every step", kAllReduce, over_and_over(40, [](int r) { return swap(r); }),
       kPlanError,
       "step 1: adds chunk 0 from rank 1, which counts the contribution of rank 0 twice"},
      {"a sum in a broadcast", kBroadcast, one_message(1, {1, 0, 1, true}), kPlanError,
       "rank 0, step 0: sends chunk 0 to rank 1 with reduce, which is for receives only"},
      {"a sum where there is nothing", kBroadcast,
       pair({1, {sends({{1, 0, 1, false}})}}, {1, {recvs({{0, 0, 1, true}})}}), kPlanError,
       "rank 1, step 0: adds chunk 0 from rank 0 to a chunk that holds nothing yet"},
      {"a copy and a sum at once", kReduce,
       pair({1, {recvs({{1, 0, 1, true}, {1, 0, 1, false}})}},
            {1, {sends({{0, 0, 1, false}, {0, 0, 1, false}})}}),
       kPlanError, "receives chunk 0 from ranks 1 and 1, and does not add both"},
      {"a send of nothing", kBroadcast,
       pair({1, {recvs({{1, 0, 1, false}})}}, {1, {sends({{0, 0, 1, false}})}}), kPlanError,
       "rank 1, step 0: sends chunk 0 to rank 0, but holds nothing in it yet"},
      {"nothing at all", kAllReduce, pair(idle, idle), kPlanError,
       "rank 0 ends with the contributions of rank 0 in chunk 0, and all_reduce promises ranks "
       "0-1"},
      {"sums that cannot be followed", kAllReduce, [] { return scattered(2048, 80); }, kPlanError,
       "takes more than 16777216 ranges of ranks"},
      {"no ranks", kAllReduce, [] { return std::vector<Plan>(); }, kInvalid,
       "world_size must be between 1 and 1073741824, got 0"},
      {"a root that is no rank", kReduce, pair(idle, idle), kInvalid,
       "root must be between 0 and 1 in a group of 2, got 2", 2},
  };
}

// What comes of `look`, which must be right or refused.
struct Outcome {
  Kind kind = kFine;
  std::string text;
};
Outcome outcome_of(const std::function<void()>& look) {
  Outcome outcome;
  try {
    look();
  } catch (const PlanError& error) {
    outcome = {kPlanError, error.what()};
  } catch (const std::invalid_argument& error) {
    outcome = {kInvalid, error.what()};
  } catch (const std::exception& error) {
    check::fail(__FILE__, __LINE__, "neither right nor refused", error.what());
  }
  return outcome;
}

Selection selection_of(PlanSource source, Collective collective = kAllReduce) {
  Selection selection;
  selection.choices[collective] = {"hostile", std::move(source)};
  return selection;
}

}  // namespace

TEST(what_is_wrong_or_too_large_is_refused_with_what_would_do) {
  for (const Hostile& hostile : hostile_plans()) {
    const std::vector<Plan> plans = hostile.plans();
    const auto [kind, text] = outcome_of([&] { verify(hostile.collective, plans, hostile.root); });
    CHECK_WITH(kind == hostile.kind, std::string(hostile.what) + ": " + text);
    CHECK_WITH(text.find(hostile.text) != std::string::npos,
               std::string(hostile.what) + ": " + text);
    // Others look at less than verify does, and come to some end, too.
    outcome_of([&] { bitwise_difference(hostile.collective, plans, hostile.root); });
    for (const Rounding rounding : {Rounding::kEveryAddition, Rounding::kEveryStep}) {
      outcome_of(
          [&] { association_difference(hostile.collective, plans, rounding, hostile.root); });
    }
    outcome_of([&] { sums_of_chunks(hostile.collective, plans, std::nullopt, hostile.root); });
    const auto world_size = static_cast<int>(plans.size());
    const auto plan_of = [&](int rank) { return plans[rank]; };
    std::vector<int> ranks(world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
    outcome_of([&] { Simulator(world_size, plan_of, Network{}, ranks).run(1024); });
    outcome_of([&] {
      const int num_chunks = plans.empty() ? 0 : plans[0].num_chunks;
      check_bounds(Contract(hostile.collective, world_size, num_chunks, hostile.root), plans);
      compile(hostile.collective, world_size, plan_of, 0, hostile.root);
    });
  }
}

TEST(the_largest_plans_that_are_carried_out) {
  // A ring of 1024 ranks has 2^21 - 2048 messages and steps; one of 1025 has more.
  const auto rings = [](int n) { return plans_of(n, ring_all_reduce); };
  check_bounds(Contract(kAllReduce, 1024, 1024, 0), rings(1024));
  CHECK_EQ(message_of<PlanError>(
               [&] { check_bounds(Contract(kAllReduce, 1025, 1025, 0), rings(1025)); }),
           "the plans have 2099200 steps, and plans may have 2097152; fewer steps or ranks would "
           "do");
  // What is promised may be as much as the bound, and no more.
  check_bounds(Contract(kAllReduce, 2, 1 << 20, 0), pair({1 << 20, {}}, {1 << 20, {}})());
  CHECK_EQ(message_of<PlanError>([&] {
             check_bounds(Contract(kBarrier, 1 << 22, 0, 0), std::vector<Plan>(1 << 22));
           }),
           "barrier of 0 chunks among 4194304 ranks has 4194304 results, and plans may have "
           "2097152; fewer ranks would do");
}

TEST(slices_of_messages_are_counted_too) {
  const auto plan_of = [](int rank) {
    const std::vector<Transfer> all(1 << 10, {1 - rank, 0, 1, false});
    return Plan{1, {rank == 0 ? sends(all) : recvs(all)}};
  };
  const Simulator simulator(2, plan_of, Network{}, {0, 1});
  CHECK_EQ(message_of<std::invalid_argument>([&] { simulator.run(1 << 16, 1); }),
           "the simulated ranks have 1024 messages of 65536 slices, at most 33554432 slices can be "
           "simulated; larger slices are fewer");
}

TEST(every_rank_of_a_group_learns_at_once) {
  const std::vector<std::pair<PlanSource, std::string>> sources = {
      {[](int, int) { return std::vector<Plan>(2, Plan{kLargest, {}}); }, "would do"},
      {[](int, int) { return std::vector<Plan>(1); }, "there are 1 plans for 2 ranks"},
  };
  for (const auto& [source, text] : sources) {
    ranks::MemoryStore store;
    ranks::on_threads(2, [&](int r) {
      Communicator communicator(store, ranks::group_config(r, 2), selection_of(source));
      std::int32_t value = 1;
      const Reduce sum{DType::kInt32, ReduceOp::kSum};
      const std::string message = message_of<PlanError>(
          [&] { communicator.all_reduce(&value, &value, 1, sum, ranks::kPatience); });
      CHECK_WITH(message.find(text) != std::string::npos, message);
      communicator.barrier(ranks::kPatience);  // the group goes on
    });
  }
}

TEST(a_rank_without_a_program_does_not_keep_the_others) {
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    const PlanSource source = [r](int, int) {
      if (r == 1) throw std::bad_alloc();
      return plans_of(2, ring_all_reduce);
    };
    Communicator communicator(store, ranks::group_config(r, 2), selection_of(source));
    std::int32_t values[2] = {1, 2};
    const Reduce sum{DType::kInt32, ReduceOp::kSum};
    CHECK_THROWS(communicator.all_reduce(values, values, 2, sum, ranks::kPatience), std::exception);
    communicator.barrier(ranks::kPatience);
  });
}
