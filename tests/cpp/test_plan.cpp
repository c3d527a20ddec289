// Plans and their proof: every generator is verified with every root, and every way of damaging a
// plan is seen. (tests/test_plan_proof.py verifies larger groups, for which sanitizers are too
// slow.)
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "plan/barrier.h"
#include "plan/chain.h"
#include "plan/compose.h"
#include "plan/direct.h"
#include "plan/hierarchical.h"
#include "plan/ring.h"
#include "plan/rooted.h"
#include "plan/verify.h"

namespace {

using namespace ringcomm;

struct Generator {
  const char* name;
  Collective collective;
  bool has_root;
  std::function<Plan(int rank, int world_size, int root)> plan;
};

Generator without_root(const char* name, Collective collective, Plan (*plan)(int, int)) {
  return {name, collective, false, [=](int rank, int n, int) { return plan(rank, n); }};
}

// The largest divisor up to the root: hosts of 2 of 4 ranks, of 3 of 12.
int ranks_per_host(int world_size) {
  int best = 1;
  for (int d = 1; d * d <= world_size; ++d) {
    if (world_size % d == 0) best = d;
  }
  return best;
}

Generator two_level(const char* name, Collective collective, Plan (*plan)(int, int, int)) {
  return {name, collective, false,
          [=](int rank, int n, int) { return plan(rank, n, ranks_per_host(n)); }};
}

const std::vector<Generator>& generators() {
  static const std::vector<Generator> all = {
      without_root("ring_reduce_scatter", Collective::kReduceScatter, ring_reduce_scatter),
      without_root("ring_all_gather", Collective::kAllGather, ring_all_gather),
      without_root("ring_all_reduce", Collective::kAllReduce, ring_all_reduce),
      without_root("direct_reduce_scatter", Collective::kReduceScatter, direct_reduce_scatter),
      without_root("direct_all_gather", Collective::kAllGather, direct_all_gather),
      without_root("direct_all_reduce", Collective::kAllReduce, direct_all_reduce),
      without_root("one_shot_all_reduce", Collective::kAllReduce, one_shot_all_reduce),
      two_level("hierarchical_reduce_scatter", Collective::kReduceScatter,
                hierarchical_reduce_scatter),
      two_level("hierarchical_all_gather", Collective::kAllGather, hierarchical_all_gather),
      two_level("hierarchical_all_reduce", Collective::kAllReduce, hierarchical_all_reduce),
      without_root("all_to_all", Collective::kAllToAll, all_to_all),
      without_root("barrier", Collective::kBarrier, barrier),
      {"chain_broadcast", Collective::kBroadcast, true, chain_broadcast},
      {"direct_broadcast", Collective::kBroadcast, true, direct_broadcast},
      {"chain_reduce", Collective::kReduce, true, chain_reduce},
      {"direct_reduce", Collective::kReduce, true, direct_reduce},
      {"gather", Collective::kGather, true, gather},
      {"scatter", Collective::kScatter, true, scatter},
  };
  return all;
}

std::vector<Plan> plans(const Generator& generator, int world_size, int root = 0) {
  std::vector<Plan> result;
  for (int rank = 0; rank < world_size; ++rank) {
    result.push_back(generator.plan(rank, world_size, root));
  }
  return result;
}

std::vector<Plan> plans(Plan (*plan)(int, int), int world_size) {
  return plans(without_root("", Collective::kAllReduce, plan), world_size);
}

// What verify has to say against the plans; empty if nothing.
std::string objection(Collective collective, const std::vector<Plan>& plans, int root = 0) {
  try {
    verify(collective, plans, root);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

template <typename Error, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Calls visit(transfer list, index) for every send and every receive of every rank.
void for_each_transfer(std::vector<Plan>& plans,
                       const std::function<void(std::vector<Transfer>&, std::size_t)>& visit) {
  for (Plan& plan : plans) {
    for (Step& step : plan.steps) {
      for (auto* transfers : {&step.sends, &step.recvs}) {
        for (std::size_t i = 0; i < transfers->size(); ++i) visit(*transfers, i);
      }
    }
  }
}

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

TEST(every_generator_keeps_its_promise_at_every_size_and_every_root) {
  for (const Generator& generator : generators()) {
    for (int n = 1; n <= 24; ++n) {
      for (int root = 0; root < (generator.has_root ? n : 1); ++root) {
        const std::string text = objection(generator.collective, plans(generator, n, root), root);
        CHECK_WITH(text.empty(), std::string(generator.name) + ": " + text);
      }
    }
  }
}

TEST(chunks_of_larger_groups_keep_their_promise) {
  for (const Generator& generator : generators()) {
    if (generator.collective == Collective::kBarrier) continue;
    const int n = 200;
    const int root = 2 * n / 3;
    const auto plan_of = [&](int rank) { return generator.plan(rank, n, root); };
    const int num_chunks = plan_of(0).num_chunks;
    verify_chunks(generator.collective, n, plan_of, {0, num_chunks / 7, num_chunks - 1}, root);
  }
}

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

TEST(one_rank_needs_no_steps) {
  for (const Generator& generator : generators()) {
    CHECK(generator.plan(0, 1, 0).steps.empty());
  }
}

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

TEST(hierarchy_of_two_hosts_of_two_ranks) {
  // Chunks 0 and 1 are what the ranks 0 and 2 move across hosts, 2 and 3 what the ranks 1 and 3 do.
  const Plan expected{4,
                      {{{{1, 2, 2, false}}, {{1, 0, 2, true}}},
                       {{{2, 1, 1, false}}, {{2, 0, 1, true}}},
                       {{{2, 0, 1, false}}, {{2, 1, 1, false}}},
                       {{{1, 0, 2, false}}, {{1, 2, 2, false}}}}};
  CHECK(hierarchical_all_reduce(0, 4, 2) == expected);
  // Rank 0's part is what the ranks 0 and 2 own.
  const Plan owned{4,
                   {{{{1, 1, 1, false}, {1, 3, 1, false}}, {{1, 0, 1, true}, {1, 2, 1, true}}},
                    {{{2, 2, 1, false}}, {{2, 0, 1, true}}}}};
  CHECK(hierarchical_reduce_scatter(0, 4, 2) == owned);
}

TEST(hierarchy_with_one_level_is_a_ring) {
  for (int rank = 0; rank < 5; ++rank) {
    for (const int per_host : {1, 5}) {
      CHECK(hierarchical_all_reduce(rank, 5, per_host) == ring_all_reduce(rank, 5));
      CHECK(hierarchical_reduce_scatter(rank, 5, per_host) == ring_reduce_scatter(rank, 5));
      CHECK(hierarchical_all_gather(rank, 5, per_host) == ring_all_gather(rank, 5));
    }
  }
}

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

TEST(generators_refuse_what_is_no_rank_and_no_root) {
  using Invalid = std::invalid_argument;
  CHECK_EQ(message_of<Invalid>([] { ring_all_reduce(4, 4); }),
           "rank must be between 0 and 3 in a group of 4, got 4");
  CHECK_EQ(message_of<Invalid>([] { chain_broadcast(0, 4, -1); }),
           "root must be between 0 and 3 in a group of 4, got -1");
  CHECK_EQ(message_of<Invalid>([] { barrier(0, 0); }),
           "world_size must be between 1 and 1073741824, got 0");
  CHECK_EQ(message_of<Invalid>([] { all_to_all(0, 46341); }),
           "all_to_all takes a world_size of at most 46340, got 46341");
  CHECK_EQ(message_of<Invalid>([] { then(barrier(0, 2), ring_all_gather(0, 2)); }),
           "a plan of 0 chunks cannot be followed by one of 2");
  for (const int per_host : {0, -2, 4, 7}) {
    CHECK_EQ(message_of<Invalid>([=] { hierarchical_all_reduce(0, 6, per_host); }),
             "ranks_per_host must divide world_size, which is 6, got " + std::to_string(per_host));
  }
  for (const Generator& generator : generators()) {
    CHECK(message_of<Invalid>([&] { generator.plan(-1, 3, 0); }).ends_with("got -1"));
    if (!generator.has_root) continue;
    CHECK(message_of<Invalid>([&] { generator.plan(0, 3, 3); }).ends_with("got 3"));
  }
}

TEST(verify_refuses_wrong_arguments) {
  using Invalid = std::invalid_argument;
  CHECK_EQ(message_of<Invalid>([] { verify(Collective::kAllReduce, {}); }),
           "world_size must be between 1 and 1073741824, got 0");
  CHECK_EQ(message_of<Invalid>([] { verify(Collective::kGather, plans(ring_all_gather, 3), 3); }),
           "root must be between 0 and 2 in a group of 3, got 3");
  CHECK_EQ(message_of<Invalid>([] { verify(Collective::kAllToAll, plans(ring_all_gather, 3)); }),
           "all_to_all takes world_size*world_size chunks, got 3 chunks for a world_size of 3");
  const auto ring_of_three = [](int rank) { return ring_all_gather(rank, 3); };
  CHECK_EQ(
      message_of<Invalid>([&] { verify_chunks(Collective::kAllGather, 3, ring_of_three, {0, 3}); }),
      "the plans have 3 chunks, and chunk 3 is not among them");
}

TEST(a_plan_for_another_collective_is_seen) {
  CHECK_EQ(objection(Collective::kAllReduce, plans(ring_reduce_scatter, 3)),
           "rank 0 ends with the contributions of ranks 0, 2 in chunk 1, and all_reduce promises "
           "ranks 0-2");
  CHECK_EQ(objection(Collective::kAllReduce, plans(ring_all_gather, 3)),
           "rank 0 ends with the contributions of rank 0 in chunk 0, and all_reduce promises "
           "ranks 0-2");
  CHECK_EQ(objection(Collective::kAllGather, plans(ring_all_reduce, 3)),
           "rank 0, step 0: sends chunk 2 to rank 1, but holds nothing in it yet");
}

TEST(every_dropped_transfer_is_seen) {
  for (const Generator& generator : generators()) {
    std::vector<Plan> damaged = plans(generator, 5, 2);
    for_each_transfer(damaged, [&](std::vector<Transfer>& transfers, std::size_t i) {
      const std::vector<Transfer> original = transfers;
      transfers.erase(transfers.begin() + i);
      CHECK(objection(generator.collective, damaged, 2) != "");
      transfers = original;
    });
    CHECK_EQ(objection(generator.collective, damaged, 2), "");
  }
}

TEST(every_change_of_peer_is_seen) {
  for (const Generator& generator : generators()) {
    std::vector<Plan> damaged = plans(generator, 5, 2);
    for_each_transfer(damaged, [&](std::vector<Transfer>& transfers, std::size_t i) {
      const int original = transfers[i].peer;
      for (int peer = -1; peer <= 5; ++peer) {
        transfers[i].peer = peer;
        CHECK((objection(generator.collective, damaged, 2) == "") == (peer == original));
      }
      transfers[i].peer = original;
    });
  }
}

TEST(every_change_of_reduce_is_seen) {
  for (const Generator& generator : generators()) {
    if (generator.collective == Collective::kBarrier) continue;
    std::vector<Plan> damaged = plans(generator, 5, 2);
    for_each_transfer(damaged, [&](std::vector<Transfer>& transfers, std::size_t i) {
      transfers[i].reduce = !transfers[i].reduce;
      CHECK(objection(generator.collective, damaged, 2) != "");
      transfers[i].reduce = !transfers[i].reduce;
    });
  }
}

TEST(a_message_lost_at_both_ends_is_a_contribution_lost) {
  std::vector<Plan> damaged = plans(ring_all_reduce, 4);
  damaged[1].steps[1].sends.clear();
  damaged[2].steps[1].recvs.clear();
  // Rank 2 then passes on its own part of chunk 3 alone, which rank 3 completes and hands to all.
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 0 ends with the contributions of ranks 2-3 in chunk 3, and all_reduce promises "
           "ranks 0-3");
  std::vector<Plan> barriers = plans(barrier, 4);
  barriers[3].steps[1].sends.clear();
  barriers[1].steps[1].recvs.clear();
  CHECK_EQ(objection(Collective::kBarrier, barriers),
           "rank 1 leaves the barrier without knowing of rank 2");
}

TEST(a_contribution_counted_twice_is_seen) {
  std::vector<Plan> damaged = plans(ring_reduce_scatter, 4);
  for (Plan& plan : damaged) plan.steps.push_back(plan.steps.back());
  CHECK_EQ(objection(Collective::kReduceScatter, damaged),
           "rank 3, step 3: adds chunk 3 from rank 2, which counts the contribution of rank 0 "
           "twice");
}

TEST(unmatched_transfers_are_named) {
  std::vector<Plan> damaged = plans(ring_all_reduce, 4);
  damaged[3].steps[5].recvs.clear();
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 2, step 5: sends chunk 0 to rank 3, which does not receive it");
  damaged = plans(ring_all_reduce, 4);
  damaged[3].steps[5].sends.clear();
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 0, step 5: receives chunk 1 from rank 3, which does not send it");
  damaged = plans(ring_all_reduce, 4);
  std::swap(damaged[3].steps[0], damaged[3].steps[1]);
  CHECK_EQ(objection(Collective::kAllReduce, damaged),
           "rank 2, step 0: sends chunk 1 to rank 3, which at its step 0 receives chunk 0 from it");
}

TEST(transfers_of_what_does_not_exist_are_named) {
  const auto with_send = [](Transfer send) {
    std::vector<Plan> damaged = plans(ring_all_gather, 2);
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
  std::vector<Plan> uneven = plans(ring_all_gather, 2);
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
    for (const Plan& plan : plans(ring_all_gather, 3)) {
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
  for (const Plan& plan : plans(ring_all_gather, 20)) damaged.push_back(cut_steps(plan, true));
  CHECK(objection(Collective::kAllGather, damaged)
            .ends_with("and so on through 20 ranks back to rank 0"));
}

TEST(sends_read_what_was_there_before_the_step) {
  // Two ranks exchange and add in one step. If a send read the sum, each contribution would count
  // twice.
  CHECK_EQ(objection(Collective::kAllReduce, plans(one_shot_all_reduce, 2)), "");
}

TEST(several_messages_between_two_ranks_in_one_step_keep_their_order) {
  const Plan sender{2, {{{{1, 0, 1, false}, {1, 1, 1, false}}, {}}}};
  const Plan receiver{2, {{{}, {{0, 0, 1, false}, {0, 1, 1, false}}}}};
  const Plan crossed{2, {{{}, {{0, 1, 1, false}, {0, 0, 1, false}}}}};
  CHECK_EQ(objection(Collective::kBroadcast, {sender, receiver}), "");
  CHECK_EQ(objection(Collective::kBroadcast, {sender, crossed}),
           "rank 0, step 0: sends chunk 0 to rank 1, which at its step 0 receives chunk 1 from it");
}
