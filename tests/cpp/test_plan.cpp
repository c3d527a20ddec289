// Every algorithm of the table keeps its promise, wherever its group stands and its root is.
// (tests/test_plan_proof.py verifies larger groups, for which sanitizers are too slow; what is
// particular to an algorithm is tested in a file of its own, test_plan_<name>.cpp.)
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/algorithms.h"
#include "plan/rendezvous.h"
#include "plans.h"

namespace {

using namespace ringcomm;

// Which ranks share a host: all, none, ranks in blocks of equal and of unequal sizes, ranks dealt
// out in turn, and ranks placed without any order.
std::vector<std::vector<int>> placements(int world_size) {
  std::vector<int> alone, pairs, growing, in_turn, scattered;
  for (int rank = 0, host = 0, last = 0; rank < world_size; ++rank) {
    alone.push_back(rank);
    pairs.push_back(rank / 2);
    if (rank > last) last += ++host + 1;
    growing.push_back(host);
    in_turn.push_back(rank % 3);
    scattered.push_back(rank * rank % 7 - 3);
  }
  return {{}, alone, pairs, growing, in_turn, scattered};
}

// Every setting of `world_size` ranks that makes a difference to the algorithm.
std::vector<Setting> settings(const Algorithm& algorithm, int world_size) {
  std::vector<Setting> all;
  if (has_root(algorithm.collective)) {
    for (int root = 0; root < world_size; ++root) all.push_back({world_size, root});
  } else if (algorithm.two_level) {
    for (const auto& host_of : placements(world_size)) all.push_back({world_size, 0, host_of});
  } else {
    all.push_back({world_size});
  }
  return all;
}

// Calls visit(list, index) for every send and every receive of every rank.
template <typename Visit>
void for_each_transfer(std::vector<Plan>& plans, Visit visit) {
  for (Plan& plan : plans) {
    for (Step& step : plan.steps) {
      for (auto* transfers : {&step.sends, &step.recvs}) {
        for (std::size_t i = 0; i < transfers->size(); ++i) visit(*transfers, i);
      }
    }
  }
}

// With five ranks every algorithm has transfers, and none that could be missed.
Setting of_five(const Algorithm& algorithm) {
  return {
      .world_size = 5, .root = has_root(algorithm.collective) ? 2 : 0, .host_of = {0, 1, 0, 1, 1}};
}

}  // namespace

TEST(names_are_unique_and_every_collective_has_one) {
  std::map<std::pair<Collective, std::string_view>, int> lines;
  std::map<Collective, int> of_collective;
  for (const Algorithm& algorithm : algorithms()) {
    CHECK_EQ(++lines[std::pair(algorithm.collective, algorithm.name)], 1);
    ++of_collective[algorithm.collective];
    CHECK(find_algorithm(algorithm.collective, algorithm.name) == &algorithm);
  }
  CHECK_EQ(of_collective.size(), std::size_t{kNumCollectives});
  CHECK(find_algorithm(Collective::kBarrier, "ring") == nullptr);
}

TEST(every_algorithm_keeps_its_promise_in_every_setting) {
  for (const Algorithm& algorithm : algorithms()) {
    for (int n = 1; n <= 24; ++n) {
      for (const Setting& setting : settings(algorithm, n)) {
        const std::string text =
            objection(algorithm.collective, plans_of(algorithm, setting), setting.root);
        CHECK_WITH(text.empty(), label(algorithm, setting) + text);
      }
    }
  }
}

TEST(chunks_of_larger_groups_keep_their_promise) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier) continue;
    const int n = 200;
    Setting setting{.world_size = n, .root = has_root(algorithm.collective) ? 133 : 0};
    if (algorithm.two_level) setting.host_of = placements(n).back();
    const auto plan_of = [&](int rank) { return algorithm.generate(rank, setting); };
    const int num_chunks = plan_of(0).num_chunks;
    verify_chunks(algorithm.collective, n, plan_of, {0, num_chunks / 7, num_chunks - 1},
                  setting.root);
  }
}

TEST(every_message_is_received_in_the_step_in_which_it_is_sent) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == "chain") continue;  // each rank receives in its first step
    for (int n = 1; n <= 17; ++n) {
      for (const Setting& setting : settings(algorithm, n)) {
        const Traffic traffic = match(
            n, [&](int rank) { return algorithm.generate(rank, setting); },
            [](const Transfer&) { return true; });
        for (const Pairing& pairing : traffic.pairings) {
          CHECK_WITH(pairing.send_step == pairing.recv_step,
                     label(algorithm, setting) + describe_place(pairing.sender, pairing.send_step));
        }
      }
    }
  }
}

TEST(phases_make_up_all_steps) {
  for (const Algorithm& algorithm : algorithms()) {
    if (!algorithm.phases) continue;
    for (int n = 1; n <= 24; ++n) {
      for (const Setting& setting : settings(algorithm, n)) {
        int total = 0;
        for (const Phase& phase : algorithm.phases(setting)) total += phase.num_steps;
        for (const Plan& plan : plans_of(algorithm, setting)) {
          CHECK_WITH(std::ssize(plan.steps) == total, label(algorithm, setting));
        }
      }
    }
  }
}

TEST(one_rank_needs_no_steps) {
  for (const Algorithm& algorithm : algorithms()) {
    CHECK_WITH(algorithm.generate(0, {}).steps.empty(), label(algorithm, {}));
  }
}

TEST(what_is_no_rank_and_no_root_is_refused) {
  using Invalid = std::invalid_argument;
  for (const Algorithm& algorithm : algorithms()) {
    const auto refusal = [&](int rank, int world_size, int root) {
      return message_of<Invalid>([&] { algorithm.generate(rank, {world_size, root}); });
    };
    CHECK_EQ(refusal(-1, 3, 0), "rank must be between 0 and 2 in a group of 3, got -1");
    CHECK_EQ(refusal(4, 4, 0), "rank must be between 0 and 3 in a group of 4, got 4");
    CHECK_EQ(refusal(0, 0, 0), "world_size must be between 1 and 1073741824, got 0");
    if (algorithm.collective == Collective::kAllToAll) {
      CHECK_EQ(refusal(0, 46341, 0), "all_to_all takes a world_size of at most 46340, got 46341");
    }
    if (!has_root(algorithm.collective)) continue;
    CHECK_EQ(refusal(0, 3, 3), "root must be between 0 and 2 in a group of 3, got 3");
    CHECK_EQ(refusal(0, 4, -1), "root must be between 0 and 3 in a group of 4, got -1");
  }
}

TEST(plans_of_different_chunks_do_not_follow_each_other) {
  CHECK_EQ(message_of<std::invalid_argument>([] { then(Plan{0, {}}, Plan{2, {}}); }),
           "a plan of 0 chunks cannot be followed by one of 2");
}

TEST(every_dropped_transfer_is_seen) {
  for (const Algorithm& algorithm : algorithms()) {
    const Setting setting = of_five(algorithm);
    std::vector<Plan> damaged = plans_of(algorithm, setting);
    for_each_transfer(damaged, [&](std::vector<Transfer>& transfers, std::size_t i) {
      const std::vector<Transfer> original = transfers;
      transfers.erase(transfers.begin() + i);
      CHECK_WITH(objection(algorithm.collective, damaged, setting.root) != "",
                 label(algorithm, setting));
      transfers = original;
    });
    CHECK_EQ(objection(algorithm.collective, damaged, setting.root), "");
  }
}

TEST(every_change_of_peer_is_seen) {
  for (const Algorithm& algorithm : algorithms()) {
    const Setting setting = of_five(algorithm);
    std::vector<Plan> damaged = plans_of(algorithm, setting);
    for_each_transfer(damaged, [&](std::vector<Transfer>& transfers, std::size_t i) {
      const int original = transfers[i].peer;
      for (int peer = -1; peer <= 5; ++peer) {
        transfers[i].peer = peer;
        CHECK_WITH(
            (objection(algorithm.collective, damaged, setting.root) == "") == (peer == original),
            label(algorithm, setting));
      }
      transfers[i].peer = original;
    });
  }
}

TEST(every_change_of_reduce_is_seen) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier) continue;
    const Setting setting = of_five(algorithm);
    std::vector<Plan> damaged = plans_of(algorithm, setting);
    for_each_transfer(damaged, [&](std::vector<Transfer>& transfers, std::size_t i) {
      transfers[i].reduce = !transfers[i].reduce;
      CHECK_WITH(objection(algorithm.collective, damaged, setting.root) != "",
                 label(algorithm, setting));
      transfers[i].reduce = !transfers[i].reduce;
    });
  }
}
