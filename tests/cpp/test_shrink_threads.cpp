// Going on without the dead: the ranks agree on which live, whichever die or give up, and when.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "check.h"
#include "errors.h"
#include "file_store.h"
#include "memory_store.h"
#include "shm/shrink.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::check_error;
using ranks::kPatience;

ranks::MemoryStore no_store;  // on one host none is used

void make_nothing(const shm::Survivors&, const std::function<void()>&) {}

shm::Survivors shrink(Communicator& c, std::vector<int> excluded = {}, bool exact = false,
                      std::chrono::milliseconds timeout = kPatience) {
  return shm::shrink(c.group(), no_store, {std::move(excluded), exact, timeout}, make_nothing);
}

TEST(the_living_go_on_with_the_same_ranks_and_key) {
  std::mutex mutex;
  std::set<std::string> keys;
  ranks::with_group(5, "ring", [&](Communicator& c) {
    if (c.rank() == 0 || c.rank() == 3) return;
    const shm::Survivors survivors = shrink(c);
    CHECK(survivors.ranks == (std::vector<int>{1, 2, 4}));
    std::lock_guard lock(mutex);
    keys.insert(survivors.key);
  });
  CHECK_EQ(keys.size(), std::size_t{1});
}

TEST(excluded_ranks_are_not_awaited_and_raise) {
  std::atomic<int> returned = 0;
  ranks::with_group(4, "ring", [&](Communicator& c) {
    if (c.rank() == 2) {
      while (returned < 3) std::this_thread::sleep_for(1ms);
      check_error(ErrorKind::kClosed, {"rank 2", "gone on without this one"}, [&] { shrink(c); });
      return;
    }
    CHECK(shrink(c, {2}, /*exact=*/true).ranks == (std::vector<int>{0, 1, 3}));
    ++returned;
  });
}

TEST(with_exact_a_further_dead_rank_is_an_error_on_all) {
  ranks::with_group(4, "ring", [&](Communicator& c) {
    if (c.rank() == 1 || c.rank() == 2) return;
    check_error(ErrorKind::kPeerDied, {"rank 2 is gone, too"}, [&] { shrink(c, {1}, true); });
    CHECK(shrink(c, {1, 2}, true).ranks == (std::vector<int>{0, 3}));
  });
}

TEST(a_rank_that_does_not_come_is_named_and_can_then_be_excluded) {
  std::atomic<int> returned = 0;
  ranks::with_group(3, "ring", [&](Communicator& c) {
    if (c.rank() == 1) {
      while (returned < 2) std::this_thread::sleep_for(1ms);
      return;
    }
    if (c.rank() == 0) {
      check_error(ErrorKind::kTimeout, {"rank 0", "Timed out after", "waiting for rank 1"},
                  [&] { shrink(c, {}, false, 200ms); });
    } else {
      CHECK_THROWS(shrink(c, {}, false, 200ms), Error);
    }
    CHECK(shrink(c, {1}).ranks == (std::vector<int>{0, 2}));
    ++returned;
  });
}

TEST(ranks_that_exclude_different_ones_raise) {
  std::atomic<int> num_raised = 0;
  ranks::with_group(3, "ring", [&](Communicator& c) {
    check_error(ErrorKind::kMismatch, {"rank " + std::to_string(c.rank()) + " in shrink"},
                [&] { shrink(c, c.rank() == 0 ? std::vector<int>{2} : std::vector<int>{}); });
    for (++num_raised; num_raised < 3;)
      std::this_thread::sleep_for(1ms);  // a rank that leaves no longer disagrees
  });
}

// A group that one rank could not make is no group, and all its ranks raise that rank's reason.
TEST(a_group_that_cannot_be_made_is_given_up) {
  ranks::with_group(3, "ring", [&](Communicator& c) {
    const shm::ShrinkCall call{{}, false, kPatience};
    if (c.rank() == 1) {
      check_error(ErrorKind::kSystem, {"no memory"}, [&] {
        shm::shrink(c.group(), no_store, call,
                    [](const shm::Survivors&, const std::function<void()>&) {
                      throw Error(ErrorKind::kSystem, "no memory");
                    });
      });
      return;
    }
    const shm::Survivors survivors = shm::shrink(c.group(), no_store, call, make_nothing);
    CHECK(survivors.ranks == (std::vector<int>{0, 2}));  // rank 1 has left, then
  });
}

// A rank that dies between joining and voting is a survivor of that round, which is aborted.
TEST(a_death_while_the_group_is_made_begins_another_round) {
  std::set<std::string> keys;
  std::mutex mutex;
  ranks::with_group(4, "ring", [&](Communicator& c) {
    auto make = [&](const shm::Survivors& survivors, const std::function<void()>& watch) {
      if (c.rank() == 2) {
        c.close("died");
        throw std::runtime_error("died");
      }
      while (survivors.ranks.size() == 4) {
        watch();
        std::this_thread::sleep_for(1ms);
      }
      std::lock_guard lock(mutex);
      keys.insert(survivors.key);
    };
    try {
      const shm::Survivors survivors =
          shm::shrink(c.group(), no_store, {{}, false, kPatience}, make);
      CHECK(survivors.ranks == (std::vector<int>{0, 1, 3}));
    } catch (const Error& error) {
      CHECK_EQ(c.rank(), 2);
      CHECK(error.kind() == ErrorKind::kClosed);
    }
  });
  CHECK_EQ(keys.size(), std::size_t{1});
}

// A rank that sees the round end sees how: that it is over and that it made the group are one word.
TEST(all_ranks_that_have_voted_are_in_the_group) {
  for (int trial = 0; trial < 1000; ++trial) {
    ranks::with_group(4, "ring", [&](Communicator& c) {
      CHECK(shrink(c).ranks == (std::vector<int>{0, 1, 2, 3}));
    });
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
void go_on(const std::filesystem::path& folder, int me, int world_size) {
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
  constexpr int kTrials = 60;
  for (int trial = 0; trial < kTrials; ++trial) {
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
        go_on(folder, r, n);
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
