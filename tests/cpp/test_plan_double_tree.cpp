// The double binary tree: the trees in its header, and what it costs at every group size.
#include <map>
#include <set>
#include <vector>

#include "check.h"
#include "plan/double_tree.h"
#include "plans.h"

namespace {

using namespace ringcomm;

// The children that a rank adds up in the tree of `chunk`.
std::set<int> children(const Plan& plan, int chunk) {
  std::set<int> result;
  for (const Step& step : plan.steps) {
    for (const Transfer& recv : step.recvs) {
      if (recv.reduce && recv.first_chunk == chunk) result.insert(recv.peer);
    }
  }
  return result;
}

}  // namespace

TEST(seven_ranks_stand_in_the_trees_of_the_header) {
  const std::vector<Plan> plans = plans_of(7, double_tree_all_reduce);
  const std::map<int, std::set<int>> first = {{3, {1, 5}}, {1, {0, 2}}, {5, {4, 6}}};
  const std::map<int, std::set<int>> second = {{4, {2, 6}}, {2, {1, 3}}, {6, {5, 0}}};
  for (int rank = 0; rank < 7; ++rank) {
    CHECK(children(plans[rank], 0) == (first.contains(rank) ? first.at(rank) : std::set<int>{}));
    CHECK(children(plans[rank], 1) == (second.contains(rank) ? second.at(rank) : std::set<int>{}));
  }
}

TEST(rank_one_of_seven) {
  // An inner node of the first tree, at depth 1; a leaf of the second, at depth 2.
  const Plan expected{2,
                      {{{{2, 1, 1, false}}, {{0, 0, 1, true}, {2, 0, 1, true}}},
                       {{{3, 0, 1, false}}, {}},
                       {{}, {{3, 0, 1, false}}},
                       {{{0, 0, 1, false}, {2, 0, 1, false}}, {{2, 1, 1, false}}}}};
  CHECK(double_tree_all_reduce(1, 7) == expected);
}

TEST(no_rank_is_an_inner_node_twice) {
  for (int n = 1; n <= 130; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      const Plan plan = double_tree_all_reduce(rank, n);
      CHECK(children(plan, 0).empty() || children(plan, 1).empty());
    }
    for (int rank = 1; rank < n; ++rank) {  // the root has the roots of both trees
      const Plan plan = double_tree_reduce(rank, n, 0);
      CHECK(children(plan, 0).empty() || children(plan, 1).empty());
    }
  }
}

TEST(it_costs_what_the_header_says) {
  for (int n = 2; n <= 130; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      const Plan all_reduce = double_tree_all_reduce(rank, n);
      CHECK_EQ(std::ssize(all_reduce.steps), 2 * floor_log2(n));
      CHECK(chunks_sent(all_reduce) <= 2 * 2);
      for (const int root : {0, n / 2, n - 1}) {
        for (const Plan& plan :
             {double_tree_broadcast(rank, n, root), double_tree_reduce(rank, n, root)}) {
          CHECK_EQ(std::ssize(plan.steps), floor_log2(n - 1) + 1);
          CHECK(chunks_sent(plan) <= 2 && chunks_received(plan) <= 2);
        }
      }
    }
  }
}
