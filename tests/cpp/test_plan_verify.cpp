// The proof of plans: what is wrong with them is seen and named. (tests/cpp/test_plan.cpp damages
// the plans of every algorithm.)
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/barrier.h"
#include "plan/direct.h"
#include "plan/ring.h"
#include "plans.h"

namespace {

using namespace ringcomm;

// The plan with every step cut in two: sends alone and receives alone.
Plan cut_steps(const Plan& plan, bool receive_first) {
  Plan result{.num_chunks = plan.num_chunks, .steps = {}};
  for (const Step& step : plan.steps) {
    const Step send{.sends = step.sends, .recvs = {}};
    const Step receive{.sends = {}, .recvs = step.recvs};
    result.steps.push_back(receive_first ? receive : send);
    result.steps.push_back(receive_first ? send : receive);
  }
  return result;
}

}  // namespace

TEST(only_flaws_of_followed_chunks_are_seen) {
  const auto damaged = [](int rank) {
    Plan plan = ring_all_gather(rank, 4);
    if (rank == 1) plan.steps[0].sends.clear();  // chunk 1 to rank 2
    return plan;
  };
  verify_chunks(Collective::kAllGather, 4, damaged, {0, 2, 3});
  CHECK_EQ(
      message_of<PlanError>([&] { verify_chunks(Collective::kAllGather, 4, damaged, {2, 1}); }),
      "rank 2, step 0: receives chunk 1 from rank 1, which does not send it");
}

TEST(verify_refuses_wrong_arguments) {
  using Invalid = std::invalid_argument;
  CHECK_EQ(message_of<Invalid>([] { verify(Collective::kAllReduce, {}); }),
           "world_size must be between 1 and 1073741824, got 0");
  CHECK_EQ(
      message_of<Invalid>([] { verify(Collective::kGather, plans_of(3, ring_all_gather), 3); }),
      "root must be between 0 and 2 in a group of 3, got 3");
  CHECK_EQ(message_of<Invalid>([] { verify(Collective::kAllToAll, plans_of(3, ring_all_gather)); }),
           "all_to_all takes world_size*world_size chunks, got 3 chunks for a world_size of 3");
  const auto ring_of_three = [](int rank) { return ring_all_gather(rank, 3); };
  CHECK_EQ(
      message_of<Invalid>([&] { verify_chunks(Collective::kAllGather, 3, ring_of_three, {0, 3}); }),
      "the plans have 3 chunks, and chunk 3 is not among them");
}

TEST(a_plan_for_another_collective_is_seen) {
  CHECK_EQ(objection(Collective::kAllReduce, plans_of(3, ring_reduce_scatter)),
           "rank 0 ends with the contributions of ranks 0, 2 in chunk 1, and all_reduce promises "
           "ranks 0-2");
  CHECK_EQ(objection(Collective::kAllReduce, plans_of(3, ring_all_gather)),
           "rank 0 ends with the contributions of rank 0 in chunk 0, and all_reduce promises "
           "ranks 0-2");
  CHECK_EQ(objection(Collective::kAllGather, plans_of(3, ring_all_reduce)),
           "rank 0, step 0: sends chunk 2 to rank 1, but holds nothing in it yet");
}

TEST(a_message_lost_at_both_ends_is_a_contribution_lost) {
  std::vector<Plan> damaged = plans_of(4, ring_all_reduce);
  damaged[1].steps[1].sends.clear();
  damaged[2].steps[1].recvs.clear();
  // Rank 2 then passes on its own part of chunk 3 alone, which rank 3 completes and hands to all.
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 0 ends with the contributions of ranks 2-3 in chunk 3, and all_reduce promises "
           "ranks 0-3");
  std::vector<Plan> barriers = plans_of(4, barrier);
  barriers[3].steps[1].sends.clear();
  barriers[1].steps[1].recvs.clear();
  CHECK_EQ(objection(Collective::kBarrier, barriers),
           "rank 1 leaves the barrier without knowing of rank 2");
}

TEST(a_contribution_counted_twice_is_seen) {
  std::vector<Plan> damaged = plans_of(4, ring_reduce_scatter);
  for (Plan& plan : damaged) plan.steps.push_back(plan.steps.back());
  CHECK_EQ(objection(Collective::kReduceScatter, damaged),
           "rank 3, step 3: adds chunk 3 from rank 2, which counts the contribution of rank 0 "
           "twice");
}

TEST(unmatched_transfers_are_named) {
  std::vector<Plan> damaged = plans_of(4, ring_all_reduce);
  damaged[3].steps[5].recvs.clear();
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 2, step 5: sends chunk 0 to rank 3, which does not receive it");
  damaged = plans_of(4, ring_all_reduce);
  damaged[3].steps[5].sends.clear();
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 0, step 5: receives chunk 1 from rank 3, which does not send it");
  damaged = plans_of(4, ring_all_reduce);
  std::swap(damaged[3].steps[0], damaged[3].steps[1]);
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 2, step 0: sends chunk 1 to rank 3, which at its step 0 receives chunk 0 from it");
}

TEST(transfers_of_what_does_not_exist_are_named) {
  const auto with_send = [](Transfer send) {
    std::vector<Plan> damaged = plans_of(2, ring_all_gather);
    damaged[1].steps[0].sends[0] = send;
    return objection(Collective::kAllGather, damaged);
  };
  CHECK_EQ(with_send({0, 1, 1, false}), "");
  CHECK_EQ(with_send({1, 1, 1, false}), "rank 1, step 0: sends chunk 1 to rank 1, which is itself");
  CHECK_EQ(with_send({2, 1, 1, false}), "rank 1, step 0: sends chunk 1 to rank 2, in a group of 2");
  CHECK_EQ(with_send({0, 1, 2, false}), "rank 1, step 0: sends chunks 1-2 to rank 0, of 2 chunks");
  CHECK_EQ(with_send({0, 0, -1, false}), "rank 1, step 0: sends no chunk to rank 0, of 2 chunks");
  CHECK_EQ(with_send({0, 1, 1, true}),
           "rank 1, step 0: sends chunk 1 to rank 0 with reduce, which is for receives only");
  std::vector<Plan> uneven = plans_of(2, ring_all_gather);
  uneven[1].num_chunks = 4;
  CHECK_EQ(objection(Collective::kAllGather, uneven),
           "rank 1 has a plan of 4 chunks, rank 0 one of 2");
}

TEST(two_receives_of_one_chunk_in_one_step_must_both_add) {
  const Plan receiver{1, {{{}, {{1, 0, 1, true}, {2, 0, 1, false}}}}};
  const Plan sender{1, {{{{0, 0, 1, false}}, {}}}};
  CHECK_EQ(objection(Collective::kReduce, {receiver, sender, sender}),
           "rank 0, step 0: receives chunk 0 from ranks 1 and 2, and does not add both");
}

TEST(a_circle_of_waiting_ranks_is_a_deadlock) {
  for (const bool receive_first : {true, false}) {
    std::vector<Plan> damaged;
    for (const Plan& plan : plans_of(3, ring_all_gather)) {
      damaged.push_back(cut_steps(plan, receive_first));
    }
    CHECK_EQ(
        objection(Collective::kAllGather, damaged),
        receive_first
            ? "deadlock: rank 0 at step 0 waits to receive chunk 2 from rank 2 (there step 1); "
              "rank 2 at step 0 waits to receive chunk 1 from rank 1 (there step 1); "
              "rank 1 at step 0 waits to receive chunk 0 from rank 0 (there step 1)"
            : "deadlock: rank 0 at step 0 waits to send chunk 0 to rank 1 (there step 1); "
              "rank 1 at step 0 waits to send chunk 1 to rank 2 (there step 1); "
              "rank 2 at step 0 waits to send chunk 2 to rank 0 (there step 1)");
    // One rank that does it the other way round breaks the circle.
    damaged[1] = cut_steps(ring_all_gather(1, 3), !receive_first);
    CHECK_EQ(objection(Collective::kAllGather, damaged), "");
  }
}

TEST(a_long_circle_is_shortened) {
  std::vector<Plan> damaged;
  for (const Plan& plan : plans_of(20, ring_all_gather)) damaged.push_back(cut_steps(plan, true));
  CHECK(objection(Collective::kAllGather, damaged)
            .ends_with("and so on through 20 ranks back to rank 0"));
}

TEST(sends_read_what_was_there_before_the_step) {
  // Two ranks exchange and add in one step. If a send read the sum, each contribution would count
  // twice.
  CHECK_EQ(objection(Collective::kAllReduce, plans_of(2, one_shot_all_reduce)), "");
}

TEST(several_messages_between_two_ranks_in_one_step_keep_their_order) {
  const Plan sender{2, {{{{1, 0, 1, false}, {1, 1, 1, false}}, {}}}};
  const Plan receiver{2, {{{}, {{0, 0, 1, false}, {0, 1, 1, false}}}}};
  const Plan crossed{2, {{{}, {{0, 1, 1, false}, {0, 0, 1, false}}}}};
  CHECK_EQ(objection(Collective::kBroadcast, {sender, receiver}), "");
  CHECK_EQ(objection(Collective::kBroadcast, {sender, crossed}),
           "rank 0, step 0: sends chunk 0 to rank 1, which at its step 0 receives chunk 1 from it");
}
