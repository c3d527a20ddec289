// The ring against the table in its header.
#include "check.h"
#include "plan/plan.h"
#include "plan/ring.h"
#include "plans.h"

using namespace ringcomm;

TEST(ring_of_four_follows_the_table_in_its_header) {
  constexpr int kSent[6][4] = {{3, 0, 1, 2}, {2, 3, 0, 1}, {1, 2, 3, 0},
                               {0, 1, 2, 3}, {3, 0, 1, 2}, {2, 3, 0, 1}};
  constexpr int kReceived[6][4] = {{2, 3, 0, 1}, {1, 2, 3, 0}, {0, 1, 2, 3},
                                   {3, 0, 1, 2}, {2, 3, 0, 1}, {1, 2, 3, 0}};
  for (int rank = 0; rank < 4; ++rank) {
    Plan expected{.num_chunks = 4, .steps = {}};
    for (int step = 0; step < 6; ++step) {
      const Transfer send{(rank + 1) % 4, kSent[step][rank], 1, false};
      const Transfer recv{(rank + 3) % 4, kReceived[step][rank], 1, step < 3};
      expected.steps.push_back({{send}, {recv}});
    }
    CHECK(ring_all_reduce(rank, 4) == expected);
    CHECK(then(ring_reduce_scatter(rank, 4), ring_all_gather(rank, 4)) == expected);
  }
}

TEST(a_ring_sends_every_chunk_but_one_in_each_half) {
  for (int n = 1; n <= 40; ++n) {
    for (const Plan& plan : plans_of(n, ring_all_reduce)) {
      CHECK_EQ(std::ssize(plan.steps), 2 * (n - 1));
      CHECK_EQ(chunks_sent(plan), 2 * (n - 1));
    }
  }
}
