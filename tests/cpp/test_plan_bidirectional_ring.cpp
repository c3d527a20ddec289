// The bidirectional ring: half of the chunks go around as in a ring, the others as in its mirror
// image, and each way carries half of what is sent.
#include <utility>
#include <vector>

#include "check.h"
#include "plan/bidirectional_ring.h"
#include "plan/ring.h"
#include "plans.h"

namespace {

using namespace ringcomm;

// What a rank does with the chunks of one half, 0 (forward) or 1 (backward), numbered as a ring's.
Plan half_of(const Plan& plan, int half) {
  Plan result{.num_chunks = plan.num_chunks / 2, .steps = {}};
  for (const Step& step : plan.steps) {
    Step& mine = result.steps.emplace_back();
    for (const auto& [from, to] :
         {std::pair(&step.sends, &mine.sends), {&step.recvs, &mine.recvs}}) {
      for (const Transfer& transfer : *from) {
        if (transfer.first_chunk % 2 != half) continue;
        to->push_back({transfer.peer, transfer.first_chunk / 2, 1, transfer.reduce});
      }
    }
  }
  return result;
}

// The plan of the rank in the mirror, seen from this side of it.
Plan mirrored(Plan plan, int world_size) {
  for (Step& step : plan.steps) {
    for (auto* transfers : {&step.sends, &step.recvs}) {
      for (Transfer& transfer : *transfers) {
        transfer.peer = world_size - 1 - transfer.peer;
        transfer.first_chunk = world_size - 1 - transfer.first_chunk;
      }
    }
  }
  return plan;
}

}  // namespace

TEST(even_chunks_go_around_a_ring_and_odd_ones_around_its_mirror_image) {
  for (int n = 1; n <= 20; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      const Plan plan = bidirectional_ring_all_reduce(rank, n);
      CHECK(half_of(plan, 0) == ring_all_reduce(rank, n));
      CHECK(half_of(plan, 1) == mirrored(ring_all_reduce(n - 1 - rank, n), n));
    }
  }
}

TEST(each_way_carries_half_of_the_rings_volume) {
  for (int n = 3; n <= 40; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      const Plan plan = bidirectional_ring_all_reduce(rank, n);
      CHECK_EQ(std::ssize(plan.steps), 2 * (n - 1));
      CHECK_EQ(chunks_sent(plan), 2 * 2 * (n - 1));  // of 2n chunks
      std::vector<int> sent_to(n);
      for (const Step& step : plan.steps) {
        for (const Transfer& send : step.sends) sent_to[send.peer] += send.num_chunks;
      }
      CHECK_EQ(sent_to[(rank + 1) % n], 2 * (n - 1));
      CHECK_EQ(sent_to[(rank - 1 + n) % n], 2 * (n - 1));
    }
  }
}
