// Recursive doubling: the table in its header, and what it costs at every group size.
#include "check.h"
#include "plan/fold.h"
#include "plan/recursive_doubling.h"
#include "plans.h"

using namespace ringcomm;

TEST(rank_two_of_eight_exchanges_with_three_zero_and_six) {
  Plan expected{.num_chunks = 1, .steps = {}};
  for (const int peer : {3, 0, 6}) {
    expected.steps.push_back({{{peer, 0, 1, false}}, {{peer, 0, 1, true}}});
  }
  CHECK(recursive_doubling_all_reduce(2, 8) == expected);
}

TEST(the_whole_buffer_is_sent_once_a_step) {
  for (int n = 1; n <= 130; ++n) {
    const Fold fold(n);
    const int log = floor_log2(n);
    const bool is_power_of_two = fold.core_size() == n;
    for (int rank = 0; rank < n; ++rank) {
      const Plan plan = recursive_doubling_all_reduce(rank, n);
      CHECK_EQ(std::ssize(plan.steps), is_power_of_two ? log : log + 2);
      const int sent = fold.is_folded(rank) ? 1 : log + (fold.is_folded(rank + 1) ? 1 : 0);
      CHECK_EQ(chunks_sent(plan), sent);
    }
  }
}
