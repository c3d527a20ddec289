// Which sums ranks end with: what the plans say of it against sums of numbers.
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "errors.h"
#include "plan/bitwise.h"
#include "plan_interpreter.h"
#include "plans.h"

namespace {

using namespace ringcomm;

Step sends(std::vector<Transfer> transfers) { return {std::move(transfers), {}}; }
Step recvs(std::vector<Transfer> transfers) { return {{}, std::move(transfers)}; }

std::string difference(const std::vector<Plan>& plans) {
  return bitwise_difference(Collective::kAllReduce, plans);
}

std::string not_canonical(const std::vector<Plan>& plans, Rounding rounding) {
  return association_difference(Collective::kAllReduce, plans, rounding);
}

std::vector<Plan> of_algorithm(const char* name, int world_size) {
  return plans_of(*find_algorithm(Collective::kAllReduce, name), {.world_size = world_size});
}

// Each rank first takes over the input of another one, and then all exchange what they have.
std::vector<Plan> shuffled_one_shot(const std::vector<int>& input_of) {
  const auto world_size = static_cast<int>(input_of.size());
  std::vector<Plan> plans = of_algorithm("one_shot", world_size);
  for (Plan& plan : plans) plan.steps.insert(plan.steps.begin(), Step{});
  for (int rank = 0; rank < world_size; ++rank) {
    if (input_of[rank] == rank) continue;
    plans[rank].steps[0].recvs.push_back({input_of[rank], 0, 1, false});
    plans[input_of[rank]].steps[0].sends.push_back({rank, 0, 1, false});
  }
  return plans;
}

// The first chunk in which ranks end with different bits of a bfloat16 sum of random numbers, or
// -1.
int chunk_that_differs(const std::vector<Plan>& plans, ReduceOp op, std::uint64_t seed) {
  const auto world_size = static_cast<int>(plans.size());
  std::mt19937_64 random(seed);
  interpreter::Problem problem{.collective = Collective::kAllReduce,
                               .world_size = world_size,
                               .root = 0,
                               .num_blocks = 1,
                               .plans = plans,
                               .reduces = {},
                               .patterns = {}};
  for (int r = 0; r < world_size; ++r) {
    problem.reduces.push_back({DType::kBFloat16, op, 0.5 + r % 3});
    interpreter::Elements& pattern = problem.patterns.emplace_back();
    for (std::size_t i = 0; i < interpreter::kPeriod; ++i) {
      const double value = static_cast<double>(random() % 20001) / 10000 - 1;
      pattern.push_back(reference::from_double(DType::kBFloat16, value));
    }
  }
  interpreter::Interpreter result(problem);
  result.run();
  for (int chunk = 0; chunk < plans[0].num_chunks; ++chunk) {
    for (int rank = 1; rank < world_size; ++rank) {
      if (result.result(rank, chunk) != result.result(0, chunk)) return chunk;
    }
  }
  return -1;
}

// Which ranks share a host: all, ranks in pairs, hosts of unequal sizes, ranks without any order.
std::vector<std::vector<int>> placements(int world_size) {
  std::vector<int> pairs, uneven, scattered;
  for (int rank = 0; rank < world_size; ++rank) {
    pairs.push_back(rank / 2);
    uneven.push_back(rank < world_size / 3 ? 0 : 1 + (rank - world_size / 3) / 5);
    scattered.push_back(rank * rank % 7);
  }
  return {{}, pairs, uneven, scattered};
}

// Rank 0 computes (0 + 1) + 2 and rank 1 computes 0 + (1 + 2), which rank 2 copies.
std::vector<Plan> drifting() {
  return {{1, {{{{1, 0, 1, false}}, {{1, 0, 1, true}}}, recvs({{2, 0, 1, true}})}},
          {1,
           {{{{0, 0, 1, false}}, {{2, 0, 1, true}}},
            recvs({{0, 0, 1, true}}),
            sends({{2, 0, 1, false}})}},
          {1, {sends({{0, 0, 1, false}, {1, 0, 1, false}}), recvs({{1, 0, 1, false}})}}};
}

// Two ranks add all others' inputs, each in an order of its own, some of them in one step, and the
// others copy one of the two sums. The first of the two begins with the other one's input.
std::vector<Plan> two_sums(int world_size, std::mt19937_64& random) {
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::shuffle(ranks, random);
  const int first = ranks[0], second = ranks[1];
  std::vector<Plan> plans(world_size, Plan{1, {}});
  for (const int adder : {first, second}) {
    std::vector<int> order;
    for (const int rank : ranks) {
      if (rank != adder) order.push_back(rank);
    }
    std::ranges::shuffle(order, random);
    if (adder == first) std::swap(order[0], *std::ranges::find(order, second));
    std::vector<Step>& steps = plans[adder].steps;
    const int other = adder == first ? second : first;
    steps.push_back(sends({{other, 0, 1, false}}));
    for (const int rank : order) {
      if (steps[0].recvs.empty() || random() % 2 == 0) {
        if (!steps[0].recvs.empty()) steps.emplace_back();
      }
      steps.back().recvs.push_back({rank, 0, 1, true});
    }
    steps.emplace_back();
  }
  for (const int rank : ranks) {
    if (rank == first || rank == second) continue;
    const int from = random() % 2 == 0 ? first : second;
    plans[rank].steps = {sends({{first, 0, 1, false}, {second, 0, 1, false}}),
                         recvs({{from, 0, 1, false}})};
    plans[from].steps.back().sends.push_back({rank, 0, 1, false});
  }
  return plans;
}

}  // namespace

TEST(different_parentheses_are_named_with_rank_and_chunk) {
  CHECK_EQ(objection(Collective::kAllReduce, drifting()), "");
  CHECK_EQ(difference(drifting()),
           "rank 0 ends with (rank 0 + rank 1) + rank 2 in chunk 0, and rank 1 with "
           "rank 0 + (rank 1 + rank 2)");
  CHECK_EQ(chunk_that_differs(drifting(), ReduceOp::kSum, 1), 0);
}

TEST(what_is_added_at_once_is_rounded_once) {
  std::vector<Plan> plans = drifting();
  // Rank 0 waits for both and adds them in one step.
  plans[0].steps = {{{{1, 0, 1, false}}, {{1, 0, 1, true}, {2, 0, 1, true}}}};
  CHECK_EQ(objection(Collective::kAllReduce, plans), "");
  CHECK_EQ(difference(plans),
           "rank 0 ends with rank 0 + rank 1 + rank 2 in chunk 0, and rank 1 with "
           "rank 0 + (rank 1 + rank 2)");
  CHECK_EQ(chunk_that_differs(plans, ReduceOp::kSum, 1), 0);
}

TEST(two_operands_may_change_places) {
  const Step swap_with_1{{{1, 0, 1, false}}, {{1, 0, 1, true}}};
  const Step swap_with_0{{{0, 0, 1, false}}, {{0, 0, 1, true}}};
  const std::vector<Plan> plans = {{1, {swap_with_1}}, {1, {swap_with_0}}};
  CHECK_EQ(difference(plans), "");
  CHECK_EQ(chunk_that_differs(plans, ReduceOp::kSum, 1), -1);
}

TEST(every_algorithm_gives_all_ranks_the_same_bits) {
  for (const Algorithm& algorithm : algorithms()) {
    for (int n = 1; n <= 64; ++n) {
      const bool has_hosts = algorithm.two_level;
      for (const auto& host_of : has_hosts ? placements(n) : std::vector<std::vector<int>>{{}}) {
        const Setting setting{.world_size = n, .root = 0, .host_of = host_of};
        const std::string found =
            bitwise_difference(algorithm.collective, plans_of(algorithm, setting), setting.root);
        CHECK_WITH(found.empty(), label(algorithm, setting) + found);
      }
    }
  }
}

TEST(so_say_the_numbers_of_every_all_reduce) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != Collective::kAllReduce) continue;
    for (int n = 2; n <= 12; ++n) {
      const Setting setting{
          .world_size = n,
          .root = 0,
          .host_of = algorithm.two_level ? placements(n).back() : std::vector<int>()};
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
        const int chunk = chunk_that_differs(plans_of(algorithm, setting), op, n);
        CHECK_WITH(chunk == -1, label(algorithm, setting) + "chunk " + std::to_string(chunk));
      }
    }
  }
}

TEST(random_sums_of_the_same_parentheses_are_the_same_bits) {
  std::mt19937_64 random(7);
  int num_same = 0, num_equal = 0;
  for (int i = 0; i < 400; ++i) {
    const std::vector<Plan> plans = two_sums(3 + i % 4, random);
    CHECK_EQ(objection(Collective::kAllReduce, plans), "");
    const std::string said = difference(plans);
    const int chunk = chunk_that_differs(plans, ReduceOp::kSum, i);
    if (said.empty()) {
      ++num_same;
      CHECK_WITH(chunk == -1, std::to_string(i));
    } else if (chunk == -1) {
      ++num_equal;  // the sums were exact in float32
    }
  }
  CHECK(num_same > 10 && num_same < 390);
  CHECK(num_equal < 10);
}

TEST(large_sums_are_shortened) {
  std::mt19937_64 random(1);
  const std::string text = difference(two_sums(40, random));
  CHECK_WITH(text.find("...") != std::string::npos, text);
  CHECK_WITH(text.size() < 1000, text);
  // The outer ones of many parentheses in each other are shown.
  CHECK_CONTAINS(
      not_canonical(of_algorithm("ring", 100), Rounding::kEveryAddition),
      " ends with rank 0 + (((((((... + rank 93) + rank 94) + rank 95) + rank 96) + rank 97) + "
      "rank 98) + rank 99) in chunk ");
}

TEST(the_canonical_sum_adds_pairs) {
  using enum Rounding;
  for (const char* name : {"one_shot", "direct"}) {
    for (int n = 1; n <= 40; ++n) {
      CHECK_EQ(not_canonical(of_algorithm(name, n), kEveryAddition), "");
      CHECK_EQ(not_canonical(of_algorithm(name, n), kEveryStep), "");
    }
  }
  const auto canonical = [](int n, Rounding rounding) {
    const std::string before = ", and not with ";
    const std::string said = not_canonical(of_algorithm("ring", n), rounding);
    const std::size_t at = said.find(before);
    return at == std::string::npos ? said : said.substr(at + before.size());
  };
  CHECK_EQ(canonical(3, kEveryAddition), "(rank 0 + rank 1) + rank 2");
  CHECK_EQ(canonical(5, kEveryAddition), "((rank 0 + rank 1) + (rank 2 + rank 3)) + rank 4");
  CHECK_EQ(canonical(6, kEveryAddition),
           "((rank 0 + rank 1) + (rank 2 + rank 3)) + (rank 4 + rank 5)");
  CHECK_EQ(canonical(7, kEveryAddition),
           "((rank 0 + rank 1) + (rank 2 + rank 3)) + ((rank 4 + rank 5) + rank 6)");
  CHECK_EQ(canonical(5, kEveryStep), "rank 0 + rank 1 + rank 2 + rank 3 + rank 4");
}

TEST(steps_that_build_the_canonical_tree_round_in_between) {
  using enum Rounding;
  const std::vector<Plan> plans = of_algorithm("recursive_doubling", 4);
  CHECK_EQ(not_canonical(plans, kEveryAddition), "");
  CHECK_EQ(not_canonical(plans, kEveryStep),
           "rank 0 ends with (rank 0 + rank 1) + (rank 2 + rank 3) in chunk 0, and not with "
           "rank 0 + rank 1 + rank 2 + rank 3");
  CHECK_EQ(not_canonical(of_algorithm("recursive_doubling", 2), kEveryStep), "");
}

TEST(the_first_chunk_and_its_first_rank_are_named) {
  CHECK_EQ(not_canonical(drifting(), Rounding::kEveryAddition),
           "rank 1 ends with rank 0 + (rank 1 + rank 2) in chunk 0, and not with "
           "(rank 0 + rank 1) + rank 2");
  // Only the owner of a chunk counts, and there the first ring of three is as it is to be.
  const std::vector<Plan> ring =
      plans_of(*find_algorithm(Collective::kReduceScatter, "ring"), {.world_size = 3});
  CHECK_EQ(association_difference(Collective::kReduceScatter, ring, Rounding::kEveryAddition),
           "rank 0 ends with rank 0 + (rank 1 + rank 2) in chunk 0, and not with "
           "(rank 0 + rank 1) + rank 2");
}

TEST(operands_of_the_same_pair_may_change_places) {
  using enum Rounding;
  const std::vector<std::vector<int>> same = {{1, 0, 2, 3}, {2, 3, 0, 1},    {3, 2, 0, 1},
                                              {1, 0, 2},    {1, 0, 3, 2, 4}, {4, 5, 0, 1, 2, 3}};
  for (std::size_t i = 0; i < same.size(); ++i) {
    const bool swaps_pairs_only = i + 1 < same.size();  // the last has 0 to 3 behind 4 and 5
    for (const Rounding rounding : {kEveryAddition, kEveryStep}) {
      CHECK_EQ(not_canonical(shuffled_one_shot(same[i]), rounding).empty(), swaps_pairs_only);
    }
  }
  CHECK_EQ(not_canonical(shuffled_one_shot({0, 2, 1}), kEveryStep),
           "rank 0 ends with rank 0 + rank 2 + rank 1 in chunk 0, and not with "
           "rank 0 + rank 1 + rank 2");
  CHECK_EQ(not_canonical(shuffled_one_shot({0, 2, 1}), kEveryAddition),
           "rank 0 ends with (rank 0 + rank 2) + rank 1 in chunk 0, and not with "
           "(rank 0 + rank 1) + rank 2");
}

TEST(what_moves_only_is_reproducible) {
  for (const Algorithm& algorithm : algorithms()) {
    if (is_reduction(algorithm.collective)) continue;
    const std::vector<Plan> plans =
        plans_of(algorithm, {.world_size = 5, .root = 0, .host_of = equal_hosts(5, 1)});
    CHECK_EQ(association_difference(algorithm.collective, plans, Rounding::kEveryStep), "");
    CHECK_EQ(
        message_of<std::invalid_argument>([&] { sums_of_chunks(algorithm.collective, plans); }),
        std::string(to_string(algorithm.collective)) + " adds nothing");
  }
}

TEST(a_table_of_sums_has_each_once) {
  const SumTable of_0 = sums_of_chunks(Collective::kAllReduce, drifting(), 0);
  CHECK(of_0.sums == (std::vector<std::vector<int>>{{0, 1}, {~0, 2}}));
  CHECK(of_0.of_chunks == (std::vector<std::pair<int, int>>{{0, 1}}));
  const SumTable of_1 = sums_of_chunks(Collective::kAllReduce, drifting(), 1);
  CHECK(of_1.sums == (std::vector<std::vector<int>>{{1, 2}, {0, ~0}}));
  const SumTable alone = sums_of_chunks(Collective::kAllReduce, {Plan{2, {}}});
  CHECK(alone.sums == (std::vector<std::vector<int>>{{0}}));
  CHECK(alone.of_chunks == (std::vector<std::pair<int, int>>{{0, 0}, {1, 0}}));
  CHECK_EQ(message_of<std::invalid_argument>(
               [&] { sums_of_chunks(Collective::kAllReduce, drifting(), 3); }),
           "rank must be between 0 and 2 in a group of 3, got 3");
}
