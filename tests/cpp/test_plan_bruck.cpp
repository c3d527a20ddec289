// Bruck's algorithms: the pictures in their header, and what they cost at every group size.
#include <algorithm>
#include <bit>
#include <vector>

#include "check.h"
#include "plan/bruck.h"
#include "plans.h"

using namespace ringcomm;

TEST(rank_three_of_five_gathers_what_is_ahead) {
  const Plan expected{5,
                      {{{{2, 3, 1, false}}, {{4, 4, 1, false}}},
                       {{{1, 3, 2, false}}, {{0, 0, 2, false}}},
                       {{{4, 3, 1, false}}, {{2, 2, 1, false}}}}};
  CHECK(bruck_all_gather(3, 5) == expected);
  // Ranges that go past the last chunk are two.
  const std::vector<Transfer> wrapped = {{2, 4, 1, false}, {2, 0, 1, false}};
  CHECK(bruck_all_gather(4, 5).steps[1].sends == wrapped);
}

TEST(what_is_for_rank_five_goes_by_rank_one_and_for_rank_six_by_rank_two) {
  const auto sends = [](int rank, int step, int peer, int chunk) {
    const Plan plan = bruck_all_to_all(rank, 8);
    return std::ranges::count(plan.steps[step].sends, Transfer{peer, chunk, 1, false}) == 1;
  };
  CHECK(sends(0, 0, 1, 5) && sends(1, 2, 5, 5));
  CHECK(sends(0, 1, 2, 6) && sends(2, 2, 6, 6));
}

TEST(steps_are_logarithmically_many) {
  for (int n = 1; n <= 130; ++n) {
    const Plan all_gather = bruck_all_gather(n / 3, n);
    CHECK_EQ(std::ssize(all_gather.steps), ceil_log2(n));
    CHECK_EQ(chunks_sent(all_gather), n - 1);
    CHECK_EQ(chunks_received(all_gather), n - 1);
    const Plan all_to_all = bruck_all_to_all(n / 3, n);
    CHECK_EQ(std::ssize(all_to_all.steps), ceil_log2(n));
    for (const Step& step : all_to_all.steps) {
      CHECK(std::ssize(step.sends) <= n / 2);
      for (const Transfer& send : step.sends) CHECK_EQ(send.peer, step.sends[0].peer);
    }
    // A message for each digit of each distance.
    int digits = 0;
    for (int distance = 1; distance < n; ++distance)
      digits += std::popcount(static_cast<unsigned>(distance));
    CHECK_EQ(chunks_sent(all_to_all), digits);
  }
}
