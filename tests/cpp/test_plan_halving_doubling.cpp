// Recursive halving and doubling: the tables in its header, and what it costs at every group size.
#include "check.h"
#include "plan/fold.h"
#include "plan/halving_doubling.h"
#include "plans.h"

namespace {

using namespace ringcomm;

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

}  // namespace

TEST(rank_two_of_eight_follows_the_table_in_the_header) {
  const Plan expected{8,
                      {{{{6, 4, 4, false}}, {{6, 0, 4, true}}},
                       {{{0, 0, 2, false}}, {{0, 2, 2, true}}},
                       {{{3, 3, 1, false}}, {{3, 2, 1, true}}},
                       {{{3, 2, 1, false}}, {{3, 3, 1, false}}},
                       {{{0, 2, 2, false}}, {{0, 0, 2, false}}},
                       {{{6, 0, 4, false}}, {{6, 4, 4, false}}}}};
  CHECK(halving_doubling_all_reduce(2, 8) == expected);
}

TEST(rank_two_of_six_is_at_place_one_and_rank_three_is_folded_into_it) {
  const Plan core{4,
                  {{{}, {{3, 0, 4, true}}},
                   {{{5, 2, 2, false}}, {{5, 0, 2, true}}},
                   {{{0, 0, 1, false}}, {{0, 1, 1, true}}},
                   {{{0, 1, 1, false}}, {{0, 0, 1, false}}},
                   {{{5, 0, 2, false}}, {{5, 2, 2, false}}},
                   {{{3, 0, 4, false}}, {}}}};
  CHECK(halving_doubling_all_reduce(2, 6) == core);
  const Plan folded{4, {{{{2, 0, 4, false}}, {}}, {}, {}, {}, {}, {{}, {{2, 0, 4, false}}}}};
  CHECK(halving_doubling_all_reduce(3, 6) == folded);
  // In a reduce-scatter place 1 sums the chunks 2 and 3, and hands chunk 3 to rank 3.
  const Plan scattered{6,
                       {{{}, {{3, 0, 6, true}}},
                        {{{5, 4, 2, false}}, {{5, 0, 4, true}}},
                        {{{0, 0, 2, false}}, {{0, 2, 2, true}}},
                        {{{3, 3, 1, false}}, {}}}};
  CHECK(halving_reduce_scatter(2, 6) == scattered);
}

TEST(places_go_up_with_ranks) {
  for (int n = 1; n <= 70; ++n) {
    const Fold fold(n);
    CHECK(is_power_of_two(fold.core_size()) && fold.core_size() <= n && 2 * fold.core_size() > n);
    CHECK_EQ(1 << fold.log2_core_size(), fold.core_size());
    CHECK_EQ(fold.rank_at(fold.core_size()), n);
    int place = 0;
    for (int rank = 0; rank < n; ++rank) {
      if (fold.is_folded(rank)) continue;
      CHECK_EQ(fold.place(rank), place);
      CHECK_EQ(fold.rank_at(place), rank);
      ++place;
    }
    CHECK_EQ(place, fold.core_size());
  }
}

TEST(powers_of_two_send_the_rings_volume_in_logarithmically_many_steps) {
  for (int n = 1; n <= 256; n *= 2) {
    for (int rank = 0; rank < n; ++rank) {
      const Plan all_reduce = halving_doubling_all_reduce(rank, n);
      CHECK_EQ(std::ssize(all_reduce.steps), 2 * floor_log2(n));
      CHECK_EQ(chunks_sent(all_reduce), 2 * (n - 1));
      CHECK_EQ(chunks_sent(halving_reduce_scatter(rank, n)), n - 1);
      CHECK_EQ(chunks_sent(doubling_all_gather(rank, n)), n - 1);
    }
  }
}

TEST(other_sizes_cost_two_steps_more_and_what_is_folded) {
  for (int n = 3; n <= 130; ++n) {
    if (is_power_of_two(n)) continue;
    const Fold fold(n);
    const int p = fold.core_size();
    for (int rank = 0; rank < n; ++rank) {
      const bool folded = fold.is_folded(rank);
      const bool has_folded = fold.is_folded(rank + 1);
      const Plan all_reduce = halving_doubling_all_reduce(rank, n);
      CHECK_EQ(std::ssize(all_reduce.steps), 2 * floor_log2(n) + 2);
      CHECK_EQ(chunks_sent(all_reduce), folded ? p : 2 * (p - 1) + (has_folded ? p : 0));
      const Plan reduce_scatter = halving_reduce_scatter(rank, n);
      CHECK_EQ(std::ssize(reduce_scatter.steps), floor_log2(n) + 2);
      CHECK_EQ(chunks_sent(reduce_scatter), folded ? n : n - 1);
      const Plan all_gather = doubling_all_gather(rank, n);
      CHECK_EQ(std::ssize(all_gather.steps), floor_log2(n) + 2);
      CHECK_EQ(chunks_received(all_gather), n - 1);  // nothing arrives twice
    }
  }
}
