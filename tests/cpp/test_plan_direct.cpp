// Direct plans: the order in which contributions are added, and what they cost.
#include <vector>

#include "check.h"
#include "plan/direct.h"
#include "plans.h"

using namespace ringcomm;

TEST(direct_receives_are_in_rank_order) {
  const Plan plan = direct_reduce_scatter(2, 5);
  CHECK_EQ(plan.steps.size(), 1u);
  std::vector<int> peers;
  for (const Transfer& recv : plan.steps[0].recvs) {
    CHECK(recv.reduce && recv.first_chunk == 2);
    peers.push_back(recv.peer);
  }
  CHECK((peers == std::vector<int>{0, 1, 3, 4}));
}

TEST(direct_plans_send_as_much_as_the_ring_in_two_steps) {
  for (int n = 2; n <= 40; ++n) {
    for (const Plan& plan : plans_of(n, direct_all_reduce)) {
      CHECK_EQ(plan.steps.size(), 2u);
      CHECK_EQ(chunks_sent(plan), 2 * (n - 1));
    }
  }
}
