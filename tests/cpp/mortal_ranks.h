// Ranks that are threads, on hosts that are played, and that may die in the midst of shrinking.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/thread.h"
#include "fault_points.h"
#include "hosts.h"
#include "shm/shrink.h"

namespace mortal {

using namespace ringcomm;
using ranks::kPatience;
using ranks::MemoryNetwork;
using ranks::MemoryStore;
using Ranks = std::vector<int>;

// What this thread throws where its rank dies.
struct Death {};

// A group, and all that come of it.
struct Meeting {
  MemoryStore store;
  std::shared_ptr<MemoryNetwork> network = MemoryNetwork::make();
};

class World {
 public:
  explicit World(Ranks host_of) : host_of(std::move(host_of)) {}

  // `key` is "" for the first group, and the key of their own for others.
  Meeting& meeting(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return meetings_[key];
  }
  int world_size() const { return static_cast<int>(host_of.size()); }

  const Ranks host_of;
  std::atomic<bool> has_store{true};  // it answers

 private:
  std::mutex mutex_;
  std::map<std::string, Meeting> meetings_;
};

// A rank, which dies at the call to a store of that number, or when the test says so.
class Mortal {
 public:
  Mortal(World& world, int rank, int last_call = -1)
      : rank(rank), world_(world), last_call_(last_call) {}

  void join(const Ranks& members, const std::string& key) {
    auto& meeting = world_.meeting(key);
    const auto at = std::ranges::lower_bound(members, rank) - members.begin();
    GroupConfig config =
        ranks::group_config(static_cast<int>(at), static_cast<int>(members.size()));
    config.host = "host " + std::to_string(world_.host_of[rank]);
    for (const int r : members) {
      config.members.global_ranks.push_back(static_cast<std::uint64_t>(r));
    }
    config.decline = [&](const std::string&, const std::string& why) {
      meeting.network->decline(static_cast<int>(at), why);
    };
    View view(*this, meeting.store, watch_);
    groups_.push_back({&meeting, std::make_unique<Communicator>(view, config, Selection{},
                                                                meeting.network->connect_hosts())});
    members_ = members;
  }

  Communicator& group() { return *groups_.back().communicator; }

  // The survivors by their numbers in the world; the new group is theirs.
  Ranks shrink(Ranks excluded = {}, bool exact = false,
               std::chrono::milliseconds timeout = kPatience) {
    std::optional<faults::Spared> spared(std::in_place);
    const Ranks members = members_;
    const auto global = [&](const Ranks& ranks) {
      Ranks numbers;
      for (const int r : ranks) numbers.push_back(members[r]);
      return numbers;
    };
    Communicator& old = group();
    const std::size_t num_groups = groups_.size();
    const auto drop_new_groups = [&] {
      while (groups_.size() > num_groups) groups_.pop_back();
      members_ = members;
    };
    View view(*this, groups_.back().meeting->store, nullptr);
    const shm::ShrinkCall call{std::move(excluded), exact, timeout};
    const shm::MakeGroup make = [&](const shm::Survivors& found,
                                    const std::function<void()>& watch) {
      if (leaves_to_make) old.close("the end");
      if (leaves_to_make || fails_to_make) throw Error(ErrorKind::kSystem, "no memory");
      if (has_no_thread_to_make) throw NoThread("no thread");
      drop_new_groups();
      watch_ = watch;
      join(global(found.ranks), found.key);
      watch_ = nullptr;
    };
    spared.reset();
    shm::Survivors survivors;
    const auto error = error_of([&] { survivors = shm::shrink(old.group(), view, call, make); });
    spared.emplace();
    if (error) {
      drop_new_groups();
      std::rethrow_exception(error);
    }
    old.close("it was shrunk");
    return global(survivors.ranks);
  }

  void decline(const std::string& why) {
    View view(*this, groups_.back().meeting->store, nullptr);
    shm::decline_to_shrink(group().group(), view, {{}, false, kPatience},
                           std::make_exception_ptr(Error(ErrorKind::kSystem, why)));
  }

  // As if its process had been killed; its group's memory remains.
  void die() {
    is_dead_ = true;
    for (const auto& [meeting, communicator] : groups_) {
      Communicator& group = *communicator;
      for (int peer = 0; peer < group.world_size(); ++peer) {
        if (peer == group.rank()) continue;
        meeting->network->lose(peer, group.rank(), "it is dead");
      }
      group.group().segment().state(group.rank()).liveness.ended.store(1);
    }
  }

  const int rank;
  bool fails_to_make = false;
  bool leaves_to_make = false;
  bool has_no_thread_to_make = false;
  bool has_no_thread_to_ask = false;  // the store, once
  std::function<void(const std::string& key)> before_write = [](const std::string&) {};
  bool counts = false;  // the calls to stores

 private:
  // The rank's own, of a store.
  struct View : Store {
    View(Mortal& rank, Store& store, std::function<void()> watch)
        : rank(rank), store(store), watch(std::move(watch)) {}
    void set(const std::string& key, const std::string& value) override {
      rank.call();
      rank.before_write(key);
      store.set(key, value);
    }
    std::optional<std::string> find(const std::string& key) override {
      if (watch) watch();
      rank.call();
      if (std::exchange(rank.has_no_thread_to_ask, false)) throw NoThread("no thread");
      return store.find(key);
    }
    std::string set_once(const std::string& key, const std::string& value) override {
      rank.call();
      rank.before_write(key);
      return store.set_once(key, value);
    }
    std::int64_t add(const std::string& key, std::int64_t amount) override {
      if (watch) watch();
      rank.call();
      return store.add(key, amount);
    }

    Mortal& rank;
    Store& store;
    const std::function<void()> watch;
  };

  void call() {
    if (is_dead_) throw Death();
    if (!world_.has_store) throw Error(ErrorKind::kSystem, "the store is gone");
    if (counts && ++calls_ == last_call_) {
      die();
      throw Death();
    }
  }

  World& world_;
  const int last_call_;
  int calls_ = 0;
  bool is_dead_ = false;
  std::function<void()> watch_;
  struct Made {
    Meeting* meeting;
    std::unique_ptr<Communicator> communicator;
  };
  std::vector<Made> groups_;
  Ranks members_;
};

// The same survivors on all, and these.
inline void expect(const Ranks& found, const Ranks& expected, const std::string& context) {
  const Members names;
  CHECK_WITH(found == expected,
             context + ": " + names.names(found) + ", not " + names.names(expected));
}

inline Ranks all_of(const World& world) {
  Ranks ranks;
  for (int r = 0; r < world.world_size(); ++r) ranks.push_back(r);
  return ranks;
}

// All ranks of a first group, which remain in being until the last has ended.
inline void with_world(
    World& world, const std::function<void(Mortal&)>& body,
    const std::function<int(int rank)>& last_call = [](int) { return -1; }) {
  std::barrier together(world.world_size());
  ranks::on_threads(world.world_size(), [&](int r) {
    Mortal rank(world, r, last_call(r));
    rank.join(all_of(world), "");
    rank.group().barrier(kPatience);
    together.arrive_and_wait();
    rank.counts = true;
    try {
      body(rank);
    } catch (const Death&) {
    } catch (const std::exception& error) {
      check::fail(__FILE__, __LINE__, "rank " + std::to_string(r) + ": " + error.what());
    }
    together.arrive_and_wait();
  });
}

// Shrinks until the group works.
inline Ranks go_on(Mortal& rank) {
  for (;;) {
    const Ranks survivors = rank.shrink();
    try {
      for (int i = 0; i < 3; ++i) rank.group().barrier(kPatience);
      return survivors;
    } catch (const Error&) {
    }
  }
}

// What the ranks return that go on: once, if they agree.
inline std::set<Ranks> found_by_all(World& world, const std::function<int(int rank)>& last_call) {
  std::mutex mutex;
  std::set<Ranks> found;
  with_world(
      world,
      [&](Mortal& rank) {
        const Ranks survivors = go_on(rank);
        const std::lock_guard lock(mutex);
        found.insert(survivors);
      },
      last_call);
  return found;
}

}  // namespace mortal
