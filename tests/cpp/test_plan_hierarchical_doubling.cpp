// Hierarchical doubling on equal hosts and on any others. That it is right for all of them is
// proved where all algorithms are (tests/test_plan_proof.py).
#include <algorithm>
#include <bit>
#include <vector>

#include "check.h"
#include "plan/direct.h"
#include "plan/hierarchical_doubling.h"
#include "plan/recursive_doubling.h"
#include "plans.h"

using namespace ringcomm;

TEST(doubling_on_two_hosts_of_two_ranks) {
  // Rank 0's column is its own and rank 2's.
  const Plan expected{2,
                      {{{{1, 1, 1, false}}, {{1, 0, 1, true}}},
                       {{{2, 0, 1, false}}, {{2, 0, 1, true}}},
                       {{{1, 0, 1, false}}, {{1, 1, 1, false}}}}};
  CHECK(hierarchical_doubling_all_reduce(0, 4, {0, 0, 1, 1}) == expected);
}

TEST(doubling_with_one_level) {
  for (int rank = 0; rank < 6; ++rank) {
    CHECK(hierarchical_doubling_all_reduce(rank, 6, {}) == direct_all_reduce(rank, 6));
    CHECK(hierarchical_doubling_all_reduce(rank, 6, {0, 1, 2, 3, 4, 5}) ==
          recursive_doubling_all_reduce(rank, 6));
  }
}

TEST(doubling_on_equal_hosts_costs_what_the_header_says) {
  for (const auto& [hosts, local] : {std::pair(1, 4), {2, 3}, {4, 1}, {8, 5}}) {
    for (int rank = 0; rank < hosts * local; ++rank) {
      const Plan plan =
          hierarchical_doubling_all_reduce(rank, hosts * local, equal_hosts(hosts * local, local));
      const int doublings = std::countr_zero(static_cast<unsigned>(hosts));
      CHECK_EQ(plan.num_chunks, local);
      CHECK_EQ(std::ssize(plan.steps), (local > 1 ? 2 : 0) + doublings);
      CHECK_EQ(chunks_sent(plan), 2 * (local - 1) + doublings);
    }
  }
}

TEST(doubling_beside_a_larger_host) {
  // Ranks 0-2 and 3-4: rank 3 stands in columns 0 and 2.
  const Plan expected{3,
                      {{{{4, 1, 1, false}}, {{4, 0, 1, true}, {4, 2, 1, true}}},
                       {{{0, 0, 1, false}, {2, 2, 1, false}}, {{0, 0, 1, true}, {2, 2, 1, true}}},
                       {{{4, 0, 1, false}, {4, 2, 1, false}}, {{4, 1, 1, false}}}}};
  CHECK(hierarchical_doubling_all_reduce(3, 5, {0, 0, 0, 1, 1}) == expected);
}
