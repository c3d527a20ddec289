// Going on without the dead in groups that span hosts, which are played by threads.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <set>
#include <thread>

#include "check.h"
#include "errors.h"
#include "hosts/membership_report.h"
#include "mortal_ranks.h"
#include "setup/store.h"
#include "shm/shrink.h"

namespace {

using namespace ringcomm;
using namespace mortal;
using namespace std::chrono_literals;
using check::check_error;

// The same survivors on all, and these.
void expect(const Ranks& found, const Ranks& expected, const std::string& context) {
  const Members names;
  CHECK_WITH(found == expected,
             context + ": " + names.names(found) + ", not " + names.names(expected));
}

TEST(all_that_live_go_on) {
  for (const Ranks& host_of : ranks::kPlacements) {
    World world(host_of);
    with_world(world, [&](Mortal& rank) { expect(go_on(rank), all_of(world), "all live"); });
  }
}

TEST(a_death_before) {
  for (const Ranks& dead : {Ranks{1}, Ranks{0}, Ranks{4}, Ranks{0, 4}, Ranks{0, 2}}) {
    World world({0, 0, 1, 1, 2});
    Ranks living;
    std::ranges::set_difference(all_of(world), dead, std::back_inserter(living));
    with_world(world, [&](Mortal& rank) {
      if (std::ranges::binary_search(dead, rank.rank)) return rank.die();
      expect(go_on(rank), living, Members{}.names(dead) + " died");
    });
  }
}

// The other ranks of its host do not know of it before they call.
TEST(a_host_whose_leader_died_is_waited_for) {
  World world({0, 0, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 0) return rank.die();
    if (rank.rank == 1) std::this_thread::sleep_for(1500ms);
    expect(go_on(rank), {1, 2}, "rank 1 came late");
  });
}

TEST(a_host_without_living_ranks) {
  World world({0, 0, 1, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank >= 2) return rank.die();
    expect(go_on(rank), {0, 1}, "host 1 died");
  });
}

// Each of them at each step: at every call to the store. As they mostly wait, many at once.
TEST(a_death_at_every_step) {
  constexpr int kOneShot = 12;
  ranks::on_threads(kOneShot, [](int i) {
    const int dying = i % 4;
    for (int step = i / 4; step < 15; step += kOneShot / 4) {
      const int last_call = step < 12 ? 1 + step : 8 * step - 76;  // 1, 2 ... 12, 20, 28, 36
      const std::string context =
          "rank " + std::to_string(dying) + " dies at call " + std::to_string(last_call);
      World world({0, 0, 1, 2});
      Ranks living = all_of(world);
      living.erase(living.begin() + dying);
      const std::set<Ranks> found =
          found_by_all(world, [&](int rank) { return rank == dying ? last_call : -1; });
      CHECK_WITH(found.size() == 1, context);
      if (found.size() == 1 && *found.begin() != all_of(world)) {  // it died too late otherwise
        expect(*found.begin(), living, context);
      }
    }
  });
}

TEST(two_deaths_at_some_steps) {
  constexpr std::pair<int, int> kDying[] = {{0, 2}, {1, 0}, {2, 3}, {3, 4}};
  ranks::on_threads(std::ssize(kDying), [&](int i) {
    const auto [first, second] = kDying[i];
    for (int step = 2; step <= 20; step += 9) {
      const std::string context = "ranks " + std::to_string(first) + " and " +
                                  std::to_string(second) + " die at " + std::to_string(step);
      World world({0, 0, 1, 1, 2});
      const std::set<Ranks> found =
          found_by_all(world, [&, first = first, second = second](int rank) {
            return rank == first ? step : rank == second ? 2 * step : -1;
          });
      CHECK_WITH(found.size() == 1, context);
    }
  });
}

// Both parts reach the store: the larger one goes on, and the other one raises.
TEST(hosts_that_are_cut_from_each_other) {
  struct Case {
    Ranks host_of;
    std::pair<Ranks, Ranks> parts;
    Ranks go_on;
  };
  const Case cases[] = {{{0, 0, 1}, {{0, 1}, {2}}, {0, 1}},
                        {{0, 1, 1}, {{0}, {1, 2}}, {1, 2}},
                        {{0, 1}, {{0}, {1}}, {0}},
                        {{0, 1, 2}, {{1}, {2}}, {0, 1}}};
  ranks::on_threads(std::size(cases), [&](int i) {
    const auto& [host_of, parts, expected] = cases[i];
    World world(host_of);
    std::barrier together(world.world_size());
    with_world(world, [&](Mortal& rank) {
      std::this_thread::sleep_for(1s);  // until all hosts have spoken
      together.arrive_and_wait();
      for (const int a : parts.first) {
        for (const int b : parts.second) {
          if (rank.rank != a && rank.rank != b) continue;
          world.meeting("").network->silence(a, b);
          world.meeting("").network->silence(b, a);
        }
      }
      std::this_thread::sleep_for(4500ms);
      if (std::ranges::binary_search(expected, rank.rank)) {
        expect(rank.shrink(), expected, "the larger part");
        rank.group().barrier(kPatience);
      } else {
        check_error(ErrorKind::kClosed,
                    {"rank " + std::to_string(rank.rank), "gone on without this one"},
                    [&] { rank.shrink(); });
      }
    });
  });
}

TEST(excluded_ranks_are_not_awaited_and_raise) {
  World world({0, 0, 1, 1});
  std::atomic<int> returned = 0;
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 2) {
      while (returned < 3) std::this_thread::sleep_for(1ms);
      check_error(ErrorKind::kClosed, {"rank 2", "ranks 0, 1 and 3 have gone on without this one"},
                  [&] { rank.shrink(); });
      return;
    }
    expect(rank.shrink({2}, /*exact=*/true), {0, 1, 3}, "rank 2 is excluded");
    ++returned;
  });
}

TEST(with_exact_a_further_dead_rank_is_an_error_on_all) {
  World world({0, 0, 1, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 1 || rank.rank == 2) return rank.die();
    check_error(ErrorKind::kPeerDied, {"rank 2 is gone, too"}, [&] { rank.shrink({1}, true); });
    expect(rank.shrink({1, 2}, true), {0, 3}, "both are excluded");
  });
}

TEST(a_rank_that_does_not_come_is_named_and_can_then_be_excluded) {
  World world({0, 0, 1, 1});
  std::barrier together(3);
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 3) return;
    check_error(ErrorKind::kTimeout, {"Timed out after", "waiting for rank 3 to call it, too"},
                [&] { rank.shrink({}, false, rank.rank == 0 ? 300ms : 60s); });
    together.arrive_and_wait();
    expect(rank.shrink({3}), {0, 1, 2}, "rank 3 is excluded");
  });
}

TEST(ranks_that_exclude_different_ones_raise) {
  World world({0, 1, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 2) return rank.die();
    check_error(
        ErrorKind::kMismatch,
        {"rank " + std::to_string(rank.rank) + " in shrink", "not with the same ranks to exclude"},
        [&] { rank.shrink(rank.rank == 0 ? Ranks{2} : Ranks{}); });
  });
}

TEST(a_group_that_one_rank_cannot_make_is_given_up_by_all) {
  World world({0, 0, 1});
  std::barrier together(3);
  with_world(world, [&](Mortal& rank) {
    rank.fails_to_make = rank.rank == 1;
    check_error(ErrorKind::kSystem, {"no memory"}, [&] { rank.shrink(); });
    together.arrive_and_wait();
    rank.fails_to_make = false;
    expect(rank.shrink(), {0, 1, 2}, "again");
  });
}

TEST(a_rank_that_has_left_cannot_go_on) {
  World world({0, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 1) {
      rank.group().close("the end");
      check_error(ErrorKind::kClosed, {"rank 1", "this rank has left the group"},
                  [&] { rank.shrink(); });
      return;
    }
    expect(rank.shrink(), {0}, "rank 1 has left");
  });
}

TEST(notices_are_read_as_they_were_written) {
  using hosts::MembershipReport;
  using hosts::MemberState;
  const MembershipReport report_{
      .number = ~std::uint64_t{0},
      .listens = true,
      .ranks = {MemberState::kJoined, MemberState::kNothing, MemberState::kGone},
      .calls = {{0, 17}}};
  const auto read = MembershipReport::read(report_.text(), 3);
  CHECK(read && read->number == report_.number && read->says_the_same_as(report_));
  CHECK(!MembershipReport::read(report_.text(), 4));
  CHECK(!MembershipReport::read("", 3));
}

// Its calls never return, as those of a store that was cut off.
struct SilentStore : MemoryStore {
  std::optional<std::string> find(const std::string&) override {
    while (!is_over) std::this_thread::sleep_for(1ms);
    ++ended;
    return std::nullopt;
  }
  std::atomic<bool> is_over{false};
  std::atomic<int> ended{0};
};

TEST(a_store_that_does_not_answer_is_an_error) {
  const auto silent = std::make_shared<SilentStore>();
  PatientStore store(silent, 200ms);
  CHECK_EQ(store.set_once("a", "1"), std::string("1"));
  CHECK_EQ(store.set_once("a", "2"), std::string("1"));
  CHECK_EQ(store.add("b", 2), 2);
  check_error(ErrorKind::kSystem, {"has not answered for 0.2 s", "\"key\""},
              [&] { store.find("key"); });
  check_error(ErrorKind::kSystem, {"has not answered"}, [&] { store.add("b", 2); });
  silent->is_over = true;
  while (silent->ended == 0) std::this_thread::sleep_for(1ms);
}

}  // namespace
