// Hierarchical plans on equal hosts, where they are a grid of rings, and on any others.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/direct.h"
#include "plan/hierarchical.h"
#include "plan/ring.h"
#include "plans.h"

namespace {

using namespace ringcomm;

// Chunks that a rank sends to other hosts.
int chunks_across(const Plan& plan, int rank, const std::vector<int>& host_of) {
  int sum = 0;
  for (const Step& step : plan.steps) {
    for (const Transfer& send : step.sends) {
      if (host_of[send.peer] != host_of[rank]) sum += send.num_chunks;
    }
  }
  return sum;
}

}  // namespace

TEST(hierarchy_of_two_hosts_of_two_ranks) {
  // Chunks 0 and 1 are what the ranks 0 and 2 move across hosts, 2 and 3 what the ranks 1 and 3 do.
  const Plan expected{4,
                      {{{{1, 2, 2, false}}, {{1, 0, 2, true}}},
                       {{{2, 1, 1, false}}, {{2, 0, 1, true}}},
                       {{{2, 0, 1, false}}, {{2, 1, 1, false}}},
                       {{{1, 0, 2, false}}, {{1, 2, 2, false}}}}};
  CHECK(hierarchical_all_reduce(0, 4, {0, 0, 1, 1}) == expected);
  // Rank 0's part is what the ranks 0 and 2 own.
  const Plan owned{4,
                   {{{{1, 1, 1, false}, {1, 3, 1, false}}, {{1, 0, 1, true}, {1, 2, 1, true}}},
                    {{{2, 2, 1, false}}, {{2, 0, 1, true}}}}};
  CHECK(hierarchical_reduce_scatter(0, 4, {0, 0, 1, 1}) == owned);
}

TEST(hierarchy_with_one_level_is_a_ring) {
  for (int rank = 0; rank < 5; ++rank) {
    for (const std::vector<int>& host_of :
         {std::vector<int>{}, {7, 7, 7, 7, 7}, {0, 1, 2, 3, 4}, {4, 9, -1, 2, 0}}) {
      CHECK(hierarchical_all_reduce(rank, 5, host_of) == ring_all_reduce(rank, 5));
      CHECK(hierarchical_reduce_scatter(rank, 5, host_of) == ring_reduce_scatter(rank, 5));
      CHECK(hierarchical_all_gather(rank, 5, host_of) == ring_all_gather(rank, 5));
    }
  }
}

TEST(direct_exchange_inside_two_hosts_of_three_ranks) {
  // Rank 1's column is the chunks 2 and 3, of which it owns the first.
  const Plan expected{
      6,
      {{{{2, 4, 2, false}, {0, 0, 2, false}}, {{0, 2, 2, true}, {2, 2, 2, true}}},
       {{{4, 3, 1, false}}, {{4, 2, 1, true}}},
       {{{4, 2, 1, false}}, {{4, 3, 1, false}}},
       {{{2, 2, 2, false}, {0, 2, 2, false}}, {{0, 0, 2, false}, {2, 4, 2, false}}}}};
  CHECK(hierarchical_all_reduce(1, 6, {0, 0, 0, 1, 1, 1}, Inside::kDirect) == expected);
}

TEST(direct_exchange_with_one_level) {
  for (int rank = 0; rank < 5; ++rank) {
    CHECK(hierarchical_all_reduce(rank, 5, {}, Inside::kDirect) == direct_all_reduce(rank, 5));
    CHECK(hierarchical_reduce_scatter(rank, 5, {}, Inside::kDirect) ==
          direct_reduce_scatter(rank, 5));
    CHECK(hierarchical_all_gather(rank, 5, {}, Inside::kDirect) == direct_all_gather(rank, 5));
    CHECK(hierarchical_all_reduce(rank, 5, {0, 1, 2, 3, 4}, Inside::kDirect) ==
          ring_all_reduce(rank, 5));
  }
}

TEST(equal_hosts_cost_what_the_header_says) {
  for (const auto& [hosts, local] : {std::pair(1, 4), {4, 1}, {2, 3}, {6, 4}, {5, 8}}) {
    const std::vector<int> host_of = equal_hosts(hosts * local, local);
    for (int rank = 0; rank < hosts * local; ++rank) {
      const Plan plan = hierarchical_all_reduce(rank, hosts * local, host_of);
      CHECK_EQ(std::ssize(plan.steps), 2 * (hosts + local - 2));
      CHECK_EQ(chunks_sent(plan), 2 * (hosts * local - 1));
      CHECK_EQ(chunks_across(plan, rank, host_of), 2 * (hosts - 1));
      const Plan direct = hierarchical_all_reduce(rank, hosts * local, host_of, Inside::kDirect);
      CHECK_EQ(std::ssize(direct.steps), 2 * hosts - (local > 1 ? 0 : 2));
      CHECK_EQ(chunks_sent(direct), chunks_sent(plan));
      CHECK_EQ(chunks_across(direct, rank, host_of), 2 * (hosts - 1));
    }
  }
}

TEST(where_ranks_stand_does_not_matter_to_their_grid) {
  // The same grid of 3 hosts of 2 ranks, in blocks and in turn: (h, l) is 2h + l, or h + 3l.
  const std::vector<int> in_turn = {0, 1, 2, 0, 1, 2};
  for (int host = 0; host < 3; ++host) {
    for (int local = 0; local < 2; ++local) {
      Plan blocks = hierarchical_all_reduce(2 * host + local, 6, equal_hosts(6, 2));
      for (Step& step : blocks.steps) {
        for (auto* transfers : {&step.sends, &step.recvs}) {
          for (Transfer& transfer : *transfers) {
            transfer.peer = transfer.peer / 2 + 3 * (transfer.peer % 2);
          }
        }
      }
      CHECK(hierarchical_all_reduce(host + 3 * local, 6, in_turn) == blocks);
    }
  }
}

TEST(unequal_hosts_cost_what_the_header_says) {
  for (const std::vector<int>& sizes : {std::vector<int>{3, 2}, {1, 4, 2}, {8, 8, 5}, {1, 1, 6}}) {
    const std::vector<int> host_of = hosts_of_sizes(sizes);
    const int n = static_cast<int>(host_of.size());
    const int hosts = static_cast<int>(sizes.size());
    std::vector<int> across(hosts);
    for (int rank = 0; rank < n; ++rank) {
      const Plan plan = hierarchical_all_reduce(rank, n, host_of);
      CHECK_EQ(std::ssize(plan.steps), 2 * (hosts + std::ranges::max(sizes) - 2));
      across[host_of[rank]] += chunks_across(plan, rank, host_of);
    }
    for (int host = 0; host < hosts; ++host) {
      CHECK_EQ(across[host], 2 * n - sizes[host] - sizes[(host + 1) % hosts]);
    }
  }
}

TEST(two_ranks_beside_three) {
  // Ranks 0-2 and 3-4. Rank 3 stands in for the third rank that its host does not have. Columns
  // are the chunks 0-1, 2-3 and 4, of which the last is rank 2's alone.
  const Plan expected{5,
                      {{{{4, 2, 2, false}}, {{4, 0, 2, true}, {4, 4, 1, true}}},
                       {},
                       {{{0, 0, 1, false}, {2, 4, 1, false}}, {{0, 1, 1, true}}},
                       {{{0, 1, 1, false}}, {{0, 0, 1, false}, {2, 4, 1, false}}},
                       {{{4, 0, 2, false}, {4, 4, 1, false}}, {{4, 2, 2, false}}},
                       {}}};
  CHECK(hierarchical_all_reduce(3, 5, {0, 0, 0, 1, 1}) == expected);
}

TEST(a_host_for_each_rank_is_wanted) {
  for (const int given : {1, 5, 7}) {
    CHECK_EQ(message_of<std::invalid_argument>(
                 [&] { hierarchical_all_reduce(0, 6, std::vector<int>(given)); }),
             "host_of must be empty or name the host of each of the 6 ranks, got " +
                 std::to_string(given) + " hosts");
  }
}
