// Going on without the dead: the ranks agree on which live, whichever die or give up, and when.
// What only groups of several hosts have is in test_shrink_hosts_threads.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "check.h"
#include "errors.h"
#include "file_store.h"
#include "mortal_ranks.h"

namespace {

using namespace ringcomm;
using namespace mortal;
using namespace std::chrono_literals;
using check::check_error;

// Each test's, of the same ranks on one host and on two.
const std::vector<Ranks> kTwoWays = {{0, 0, 0, 0}, {0, 0, 1, 1}};

TEST(all_that_live_go_on) {
  std::vector<Ranks> placements = ranks::kPlacements;
  placements.insert(placements.end(), {{0}, {0, 0, 0, 0, 0}});
  for (const Ranks& host_of : placements) {
    World world(host_of);
    with_world(world, [&](Mortal& rank) { expect(go_on(rank), all_of(world), "all live"); });
  }
}

TEST(a_death_before) {
  for (const Ranks& host_of : {Ranks{0, 0, 0, 0, 0}, Ranks{0, 0, 1, 1, 2}}) {
    for (const Ranks& dead : {Ranks{1}, Ranks{0}, Ranks{4}, Ranks{0, 4}, Ranks{0, 2}}) {
      World world(host_of);
      Ranks living;
      std::ranges::set_difference(all_of(world), dead, std::back_inserter(living));
      with_world(world, [&](Mortal& rank) {
        if (std::ranges::binary_search(dead, rank.rank)) return rank.die();
        expect(go_on(rank), living, Members{}.names(dead) + " died");
      });
    }
  }
}

// Each of them at each step: at every call to the store. As they mostly wait, many at once.
void die_at_every_step(const Ranks& host_of) {
  constexpr int kOneShot = 12;
  ranks::on_threads(kOneShot, [&](int i) {
    const int dying = i % 4;
    for (int step = i / 4; step < 15; step += kOneShot / 4) {
      const int last_call = step < 12 ? 1 + step : 8 * step - 76;  // 1, 2 ... 12, 20, 28, 36
      const std::string context =
          "rank " + std::to_string(dying) + " dies at call " + std::to_string(last_call);
      World world(host_of);
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

TEST(a_death_at_every_step_on_one_host) { die_at_every_step({0, 0, 0, 0}); }
TEST(a_death_at_every_step_on_three_hosts) { die_at_every_step({0, 0, 1, 2}); }

TEST(two_deaths_at_some_steps) {
  constexpr std::pair<int, int> kDying[] = {{0, 2}, {1, 0}, {2, 3}, {3, 4}};
  for (const Ranks& host_of : {Ranks{0, 0, 0, 0, 0}, Ranks{0, 0, 1, 1, 2}}) {
    ranks::on_threads(std::ssize(kDying), [&](int i) {
      const auto [first, second] = kDying[i];
      for (int step = 2; step <= 20; step += 9) {
        const std::string context = "ranks " + std::to_string(first) + " and " +
                                    std::to_string(second) + " die at " + std::to_string(step);
        World world(host_of);
        const std::set<Ranks> found =
            found_by_all(world, [&, first = first, second = second](int rank) {
              return rank == first ? step : rank == second ? 2 * step : -1;
            });
        CHECK_WITH(found.size() == 1, context);
      }
    });
  }
}

TEST(excluded_ranks_are_not_awaited_and_raise) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    std::atomic<int> returned = 0;
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 2) {
        while (returned < 3) std::this_thread::sleep_for(1ms);
        check_error(ErrorKind::kClosed,
                    {"rank 2", "ranks 0, 1 and 3 have gone on without this one"},
                    [&] { rank.shrink(); });
        return;
      }
      expect(rank.shrink({2}, /*exact=*/true), {0, 1, 3}, "rank 2 is excluded");
      ++returned;
    });
  }
}

TEST(with_exact_a_further_dead_rank_is_an_error_on_all) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 1 || rank.rank == 2) return rank.die();
      check_error(ErrorKind::kPeerDied, {"rank 2 is gone, too"}, [&] { rank.shrink({1}, true); });
      expect(rank.shrink({1, 2}, true), {0, 3}, "both are excluded");
    });
  }
}

TEST(a_rank_that_does_not_come_is_named_and_can_then_be_excluded) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    std::barrier together(3);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 3) return;
      check_error(ErrorKind::kTimeout, {"Timed out after", "waiting for rank 3 to call it, too"},
                  [&] { rank.shrink({}, false, rank.rank == 0 ? 300ms : kPatience); });
      together.arrive_and_wait();
      expect(rank.shrink({3}), {0, 1, 2}, "rank 3 is excluded");
    });
  }
}

TEST(ranks_that_exclude_different_ones_raise) {
  for (const Ranks& host_of : {Ranks{0, 0, 0}, Ranks{0, 1, 1}}) {
    World world(host_of);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 2) return rank.die();
      check_error(ErrorKind::kMismatch,
                  {"rank " + std::to_string(rank.rank) + " in shrink",
                   "not with the same ranks to exclude"},
                  [&] { rank.shrink(rank.rank == 0 ? Ranks{2} : Ranks{}); });
    });
  }
}

// Whoever gives up first, and though rank 0 does not heed rank 2.
TEST(a_rank_that_is_excluded_by_some_and_calls_is_an_error_on_all) {
  for (const Ranks& host_of : {Ranks{0, 0, 0}, Ranks{0, 1, 1}}) {
    for (const int first : {0, 1, 2}) {
      World world(host_of);
      with_world(world, [&](Mortal& rank) {
        if (rank.rank != first) std::this_thread::sleep_for(200ms);
        check_error(ErrorKind::kMismatch, {"not with the same ranks to exclude"},
                    [&] { rank.shrink(rank.rank == 0 ? Ranks{2} : Ranks{}); });
      });
    }
  }
}

// A rank that hangs, and no more, does not keep the others from going on without it.
TEST(an_excluded_rank_that_gives_up_ends_the_call_for_itself) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    std::barrier has_raised(2);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 2) {
        CHECK_THROWS(rank.shrink({}, false, 300ms), Error);
        has_raised.arrive_and_wait();
        return;
      }
      if (rank.rank == 1) has_raised.arrive_and_wait();
      expect(rank.shrink({2}), {0, 1, 3}, "rank 2 is excluded");
    });
  }
}

// A group that one rank could not make is no group, and all its ranks raise that rank's reason.
TEST(a_group_that_one_rank_cannot_make_is_given_up_by_all) {
  for (const Ranks& host_of : {Ranks{0, 0, 0}, Ranks{0, 0, 1}}) {
    World world(host_of);
    std::barrier together(3);
    with_world(world, [&](Mortal& rank) {
      rank.fails_to_make = rank.rank == 1;
      check_error(ErrorKind::kSystem, {"no memory"}, [&] { rank.shrink(); });
      together.arrive_and_wait();
      rank.fails_to_make = false;
      expect(rank.shrink(), {0, 1, 2}, "again");
    });
  }
}

// A rank that lacks a thread for another call makes that again by itself.
TEST(a_rank_without_a_thread_is_not_told_to_call_again_alone) {
  World world({0, 0, 0});
  with_world(world, [&](Mortal& rank) {
    rank.has_no_thread_to_make = rank.rank == 1;
    const std::exception_ptr error = error_of([&] { rank.shrink(); });
    CHECK(error != nullptr);
    CHECK(what_of(error).find("makes no further thread") != std::string::npos);
    CHECK(what_of(error).find("again") == std::string::npos);
  });
}

TEST(a_rank_without_a_thread_to_ask_the_store_is_not_awaited_by_those_that_come_later) {
  for (const Ranks& host_of : {Ranks{0, 0, 0}, Ranks{0, 0, 1}}) {
    World world(host_of);
    std::barrier raised(3);
    with_world(world, [&](Mortal& rank) {
      rank.has_no_thread_to_ask = rank.rank == 1;
      if (rank.rank != 1) raised.arrive_and_wait();
      check_error(ErrorKind::kSystem, {"makes no further thread"}, [&] { rank.shrink(); });
      if (rank.rank == 1) raised.arrive_and_wait();
    });
  }
}

// It finds that the others have begun the next round, where they would wait for it.
TEST(a_rank_that_gives_up_when_its_round_is_over_ends_the_next) {
  for (const Ranks& host_of : {Ranks{0, 0, 0}, Ranks{0, 0, 1}}) {
    World world(host_of);
    MemoryStore& store = world.meeting("").store;
    with_world(world, [&](Mortal& rank) {
      rank.fails_to_make = rank.rank == 1;
      if (rank.rank == 1) {
        rank.before_write = [&](const std::string& key) {
          if (key.ends_with("/0/verdict")) store.set_once(key, "again");
        };
      }
      check_error(ErrorKind::kSystem, {"no memory"}, [&] { rank.shrink(); });
    });
  }
}

// Those that wait for it, and those that come later.
TEST(what_a_rank_declines_for_is_raised_by_all) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    std::barrier declined(3);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 1) {
        std::this_thread::sleep_for(100ms);
        rank.decline("it has no time");
      }
      if (rank.rank != 0) declined.arrive_and_wait();
      if (rank.rank != 1) {
        check_error(ErrorKind::kSystem, {"rank 1 gave up: it has no time"}, [&] { rank.shrink(); });
      }
    });
  }
}

TEST(a_rank_that_has_left_cannot_go_on) {
  for (const Ranks& host_of : {Ranks{0, 0}, Ranks{0, 1}}) {
    World world(host_of);
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
}

// The others see it as a death: the round is over, and the next one goes without that rank.
TEST(a_rank_may_leave_while_the_group_is_made) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 2) {
        rank.leaves_to_make = true;
        check_error(ErrorKind::kClosed, {"rank 2", "this rank has left the group"},
                    [&] { rank.shrink(); });
        return;
      }
      expect(rank.shrink(), {0, 1, 3}, "rank 2 left");
    });
  }
}

TEST(a_store_that_fails_is_said_at_once) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    std::atomic<int> calling = 0;
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 0) {
        while (calling < 3) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(100ms);
        world.has_store = false;
      }
      ++calling;
      const auto start = Clock::now();
      check_error(ErrorKind::kSystem, {"the store is gone"}, [&] { rank.shrink(); });
      CHECK(Clock::now() - start < kPatience / 2);
    });
  }
}

// A rank that sees the round end sees how: one key says that it is over and that it made the group.
TEST(all_ranks_that_have_voted_are_in_the_group) {
  for (int trial = 0; trial < 100; ++trial) {
    World world({0, 0, 0, 0});
    with_world(world, [&](Mortal& rank) { expect(rank.shrink(), all_of(world), "all live"); });
  }
}

// Some know already that the round is over when one rank finds that the group is made.
TEST(the_first_verdict_stands) {
  World world({0, 0, 0, 0});
  MemoryStore& store = world.meeting("").store;
  with_world(world, [&](Mortal& rank) {
    rank.before_write = [&](const std::string& key) {
      if (!key.ends_with("/0/verdict")) return;
      store.set_once(key, "again");
      std::this_thread::sleep_for(100ms);
    };
    expect(go_on(rank), all_of(world), "all live");
  });
}

// Two for a round, and each host's report; the new group's are elsewhere.
TEST(few_keys_remain_in_the_store) {
  for (const Ranks& host_of : kTwoWays) {
    World world(host_of);
    MemoryStore& store = world.meeting("").store;
    std::vector<std::string> before;
    std::barrier together(4);
    with_world(world, [&](Mortal& rank) {
      if (rank.rank == 0) before = store.keys();
      together.arrive_and_wait();
      rank.shrink();
    });
    const int num_reports = Placement{host_of}.num_hosts() > 1 ? 2 : 0;
    CHECK_EQ(static_cast<int>(store.keys().size() - before.size()), 2 + num_reports);
  }
}

// fork() and ThreadSanitizer do not go together.
#ifndef __SANITIZE_THREAD__

// A rank that waits in this store asks it again and again, and so calls watch().
class WatchedStore : public Store {
 public:
  WatchedStore(const std::filesystem::path& folder, const std::function<void()>& watch)
      : store_(folder), watch_(watch) {}

  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::optional<std::string> find(const std::string& key) override {
    watch_();
    return store_.find(key);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return store_.set_once(key, value);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    watch_();
    return store_.add(key, amount);
  }

 private:
  ranks::FileStore store_;
  const std::function<void()>& watch_;
};

std::string get(ranks::FileStore& store, const std::string& key) {
  const auto start = Clock::now();
  for (;;) {
    if (const auto value = store.find(key)) return *value;
    if (Clock::now() - start > kPatience) return "nothing";
    std::this_thread::sleep_for(1ms);
  }
}

// One rank: shrinks until no rank dies any more, which all know then, and writes which ranks are in
// its group.
void go_on_in(const std::filesystem::path& folder, int me, int world_size) {
  ranks::FileStore store(folder);
  auto group =
      std::make_unique<Communicator>(store, ranks::group_config(me, world_size), Selection{});
  std::vector<int> members(world_size);
  for (int r = 0; r < world_size; ++r) members[r] = r;
  group->barrier(kPatience);
  store.set("begun " + std::to_string(me), "");
  for (;;) {
    std::unique_ptr<Communicator> next;
    const shm::Survivors survivors = shm::shrink(
        group->group(), store, {{}, false, kPatience},
        [&](const shm::Survivors& found, const std::function<void()>& watch) {
          const auto at = std::lower_bound(found.ranks.begin(), found.ranks.end(), group->rank());
          std::string name = found.key;
          std::replace(name.begin(), name.end(), '/', '-');
          std::filesystem::create_directories(folder / name);
          WatchedStore meeting(folder / name, watch);
          next = std::make_unique<Communicator>(
              meeting,
              ranks::group_config(static_cast<int>(at - found.ranks.begin()),
                                  static_cast<int>(found.ranks.size())),
              Selection{});
        });
    std::vector<int> left;
    for (const int r : survivors.ranks) left.push_back(members[r]);
    members = left;
    group = std::move(next);
    try {
      for (std::int32_t is_over = 0; is_over == 0;) {
        is_over = store.find("deaths are over").has_value();
        group->all_reduce(&is_over, &is_over, 1, {DType::kInt32, ReduceOp::kMin}, kPatience);
        std::this_thread::sleep_for(1ms);
      }
    } catch (const Error&) {
      continue;  // a rank has died since
    }
    store.set("end " + std::to_string(me), Members{}.names(members));
    return;
  }
}

// Ranks are killed while they agree and meet. Each rank that is left has the same group as the
// others.
TEST(deaths_at_random) {
  const long num_trials = check::from_environment("RINGCOMM_TEST_TRIALS", 15);
  for (int trial = 0; trial < num_trials; ++trial) {
    std::mt19937 random(trial);
    const int n = 2 + static_cast<int>(random() % 5);
    std::string name = std::filesystem::temp_directory_path() / "ringcomm-shrink-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    const std::filesystem::path folder = name;
    std::vector<pid_t> children;
    for (int r = 0; r < n; ++r) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      try {
        go_on_in(folder, r, n);
      } catch (const std::exception& error) {
        ranks::FileStore(folder).set("end " + std::to_string(r), error.what());
      }
      _exit(0);
    }
    ranks::FileStore store(folder);
    for (int r = 0; r < n; ++r) get(store, "begun " + std::to_string(r));
    std::vector<int> order(n);
    for (int r = 0; r < n; ++r) order[r] = r;
    std::shuffle(order.begin(), order.end(), random);
    const std::size_t deaths = 1 + random() % (n - 1);
    std::exponential_distribution<double> delay(1 / 4e-3);
    for (std::size_t i = 0; i < deaths; ++i) {
      std::this_thread::sleep_for(std::chrono::duration<double>(delay(random)));
      kill(children[order[i]], SIGKILL);
      CHECK_EQ(waitpid(children[order[i]], nullptr, 0), children[order[i]]);
    }
    store.set("deaths are over", "");
    std::vector<int> living(order.begin() + deaths, order.end());
    std::sort(living.begin(), living.end());
    for (const int r : living) {
      CHECK_EQ(waitpid(children[r], nullptr, 0), children[r]);
      const std::string end = get(store, "end " + std::to_string(r));
      CHECK_WITH(end == Members{}.names(living), "trial " + std::to_string(trial) + ": rank " +
                                                     std::to_string(r) + " ended with " + end);
    }
    std::filesystem::remove_all(folder);
  }
}

#endif

}  // namespace
