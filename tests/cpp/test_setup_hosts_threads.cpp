// Groups that span hosts, played by threads: ranks find out which of them share memory, and an
// error on one host is raised on all.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "memory_store.h"
#include "scarce_memory.h"
#include "seen_stores.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::error_of;
using ranks::ChangedStore;
using ranks::ContainerStore;
using ranks::group_config;
using ranks::HiddenKernelStore;
using ranks::KernelStore;
using ranks::kPatience;
using ranks::MemoryStore;
using ranks::WatchedStore;

// Makes a group whose ranks see stores of their own, and checks where its ranks are: in memory,
// too. By what the invitations say.
void check_placement(const Placement& expected, const std::vector<GroupConfig>& invitations,
                     const std::function<std::unique_ptr<Store>(int rank)>& store_of) {
  const int n = static_cast<int>(invitations.size());
  std::vector<std::unique_ptr<shm::Segment>> group(n);
  ranks::on_threads(n, [&](int r) {
    const std::unique_ptr<Store> store = store_of(r);
    group[r] = std::make_unique<shm::Segment>(*store, invitations[r]);
    group[r]->state(r).completed = 1 + r;
  });
  for (int r = 0; r < n; ++r) {
    CHECK(group[r]->placement() == expected);
    for (int peer = 0; peer < n; ++peer) {
      const bool is_local = expected.together(r, peer);
      shm::RankState& state = group[r]->state(peer);
      CHECK_EQ(state.completed.load(), is_local ? 1u + peer : 0u);
      CHECK_EQ(state.joined.load(), is_local ? 1u : 0u);
    }
  }
}

// Every rank sees this store as it is.
auto as_it_is(Store& store) {
  return [&store](int) {
    return std::make_unique<ChangedStore>(store, [](const std::string&, std::string&) {});
  };
}

std::vector<GroupConfig> invite_all(const Placement& placement) {
  std::vector<GroupConfig> invitations;
  for (int r = 0; r < static_cast<int>(placement.host_of.size()); ++r) {
    invitations.push_back(group_config(r, placement));
  }
  return invitations;
}

std::vector<int> random_numbers(std::mt19937& random, int count, int below) {
  std::vector<int> numbers(count);
  for (int& number : numbers) number = static_cast<int>(random() % below);
  return numbers;
}

TEST(hosts_with_names_may_have_any_ranks) {
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    const int n = 1 + static_cast<int>(random() % 9);
    const Placement placement =
        Placement::of(random_numbers(random, n, 1 + static_cast<int>(random() % n)));
    WatchedStore store;
    check_placement(placement, invite_all(placement), as_it_is(store));
    std::size_t shared = 0;
    for (int host = 0; host < placement.num_hosts(); ++host) {
      if (placement.ranks_on(host).size() > 1) ++shared;
    }
    CHECK_EQ(store.paths.size(), shared);
  }
}

TEST(ranks_without_a_name_share_no_memory_with_named_ones) {
  std::vector<GroupConfig> invitations = {group_config(0, 4), group_config(1, 4),
                                          group_config(2, 4), group_config(3, 4)};
  invitations[1].host = invitations[3].host = "a name with spaces";
  MemoryStore store;
  check_placement({{0, 1, 0, 1}}, invitations, as_it_is(store));
}

TEST(hosts_have_the_names_that_were_given) {
  MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    GroupConfig config = group_config(r, 3);
    config.members.global_ranks = {5, 6, 7};
    if (r == 1) config.host = "a name with spaces";
    shm::Segment group(store, config);
    CHECK_EQ(group.state(0).host.str(), host_name());
    CHECK_EQ(group.state(1).host.str(), "a name with spaces");
    CHECK_EQ(group.state(1).global_rank, 6u);
  });
}

// Where nothing is said, it is tried.
TEST(copies_of_a_machine_and_containers_are_distinguished_by_trying) {
  std::mt19937 random(2);
  for (int i = 0; i < 30; ++i) {
    const int n = 2 + static_cast<int>(random() % 7);
    const std::vector<int> machine = random_numbers(random, n, 1 + static_cast<int>(random() % 4));
    const std::vector<int> container = random_numbers(random, n, 2);
    MemoryStore store;
    check_placement(Placement::of(machine), invite_all(Placement::one_host(n)), [&](int r) {
      return std::make_unique<ContainerStore>(store, machine[r], container[r]);
    });
  }
}

TEST(memory_with_another_cookie_is_not_meant) {
  MemoryStore store;
  check_placement({{0, 1, 0}}, invite_all(Placement::one_host(3)), [&](int r) {
    return std::make_unique<ChangedStore>(store, [r](const std::string& key, std::string& value) {
      if (r == 1 && key.starts_with("shown/")) value = value.substr(0, value.find('\n')) + "\n1";
    });
  });
}

TEST(kernels_with_boot_ids_of_their_own_are_hosts) {
  MemoryStore store;
  const Placement placement{{0, 1, 1, 0, 2}};
  check_placement(placement, invite_all(Placement::one_host(5)), [&](int r) {
    return std::make_unique<KernelStore>(store, placement.host_of[r]);
  });
}

TEST(if_kernels_are_hidden_ranks_try_to_share_memory) {
  MemoryStore store;
  check_placement(Placement::one_host(3), invite_all(Placement::one_host(3)),
                  [&](int) { return std::make_unique<HiddenKernelStore>(store); });
  // Some are, and some of those are not within reach.
  const Placement placement{{0, 0, 1, 0, 1}};
  check_placement(placement, invite_all(Placement::one_host(5)),
                  [&](int r) -> std::unique_ptr<Store> {
                    if (r == 0) return std::make_unique<ContainerStore>(store, 0, 0);
                    struct Both : HiddenKernelStore {
                      Both(Store& store, int machine)
                          : HiddenKernelStore(container), container(store, machine, 0) {}
                      ContainerStore container;
                    };
                    return std::make_unique<Both>(store, placement.host_of[r]);
                  });
}

TEST(what_failed_attempts_have_left_does_no_harm) {
  const Placement placement{{0, 1, 0, 1, 2}};
  MemoryStore store;
  for (const int r : {1, 0, 4, 3, 2}) {
    GroupConfig config = group_config(r, placement);
    config.timeout = 1ms;
    error_of(ErrorKind::kTimeout, [&] { shm::Segment(store, config); });
  }
  for (int i = 0; i < 3; ++i) check_placement(placement, invite_all(placement), as_it_is(store));
}

TEST(a_rank_that_comes_again_takes_its_place) {
  for (const int again : {1, 2, 3}) {
    const Placement placement{{0, 0, 1, 1}};
    MemoryStore store;
    std::vector<Placement> found(4);
    ranks::on_threads(4, [&](int r) {
      if (r == again) {
        const GroupConfig config = group_config(r, placement);
        Bootstrap earlier(store, config);
        std::this_thread::sleep_for(200ms);
      }
      found[r] = shm::Segment(store, group_config(r, placement)).placement();
    });
    for (const Placement& each : found) CHECK(each == placement);
  }
}

// A rank whose process ends when the test says so: a child that does nothing.
struct Mortal : ChangedStore {
  explicit Mortal(Store& store)
      : ChangedStore(store, [](const std::string&, std::string&) {}), child(fork()) {
    if (child == 0) {
      for (;;) pause();
    }
  }
  ~Mortal() override { end(); }
  void set(const std::string& key, const std::string& value) override {
    const Process self = Process::self();
    std::string text = value;
    const std::string own = (RecordWriter() << self.pid << self.start_time).text();
    const std::size_t at = text.find(own);
    if (at != std::string::npos) {
      text.replace(at, own.size(), (RecordWriter() << child << 0).text());
    }
    ChangedStore::set(key, text);
  }
  void end() {
    if (child <= 0) return;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = 0;
  }

  pid_t child;
};

// Ranks 0 and 1 are on one host, 2 and 3 on another, under a kernel of its own if `apart`. One of
// them comes last, does not go on, and ends. What the others say of that.
std::vector<std::string> texts_of_death(int dead, bool apart) {
  const Placement placement{{0, 0, 1, 1}};
  MemoryStore store;
  std::atomic<int> come{0};
  store.on_set = [&](const std::string& key, const std::string&) {
    if (key.starts_with("tickets/")) ++come;
  };
  std::vector<std::string> texts;
  std::mutex mutex;
  ranks::on_threads(4, [&](int r) {
    KernelStore seen(store, apart ? placement.host_of[r] : 0);
    const GroupConfig config = apart ? group_config(r, 4) : group_config(r, placement);
    if (r == dead) {
      while (come < 3) std::this_thread::sleep_for(1ms);
      Mortal mortal(seen);
      Bootstrap bootstrap(mortal, config);
      for (int i = 0; i < 40; ++i) {
        if (dead == 0) bootstrap.look();
        std::this_thread::sleep_for(10ms);
      }
      return mortal.end();
    }
    const std::string text = error_of(ErrorKind::kPeerDied, [&] { shm::Segment(seen, config); });
    const std::lock_guard lock(mutex);
    texts.push_back(text);
  });
  return texts;
}

// All cases at once, as ranks mostly wait.
TEST(a_rank_that_ends_on_any_host_is_named_on_all) {
  ranks::on_threads(2 * 4, [](int i) {
    const int dead = i % 4;
    const std::vector<std::string> texts = texts_of_death(dead, /*apart=*/i < 4);
    CHECK_EQ(texts.size(), 3u);
    for (const std::string& text : texts) {
      CHECK_CONTAINS(text, "rank " + std::to_string(dead) + " will not come: its process ");
    }
  });
}

TEST(a_rank_of_another_host_that_does_not_go_on_is_named_by_all_and_nothing_is_left) {
  const host::Restored restored;
  for (const bool has_memfds : {true, false}) {
    host::has_memfds = has_memfds;
    const Placement placement{{0, 0, 1, 1, 1}};
    WatchedStore store;
    std::vector<std::string> texts(5);
    ranks::on_threads(5, [&](int r) {
      GroupConfig config = group_config(r, placement);
      if (r == 0) config.timeout = 500ms;
      if (r == 3) {
        Bootstrap(store, config);
      } else {
        texts[r] = error_of(ErrorKind::kTimeout, [&] { shm::Segment(store, config); });
      }
    });
    CHECK_CONTAINS(texts[0], "all came, and ranks 2, 3 and 4 did not go on");
    for (const int r : {1, 2, 4}) CHECK_EQ(texts[r], texts[0]);
    CHECK_EQ(store.paths.size(), 2u);
    for (const std::string& path : store.paths) CHECK(access(path.c_str(), F_OK) != 0);
  }
}

TEST(too_little_memory_on_one_host_raises_on_all) {
  const host::Restored restored;
  const Placement placement{{0, 1, 1}};
  WatchedStore store;
  ranks::on_threads(3, [&](int r) {
    // Rank 0 has its memory before rank 1 learns that it is to take some.
    ChangedStore seen(store, [r](const std::string& key, std::string&) {
      if (r == 1 && key.starts_with("told/")) host::file_nbytes = 100;
    });
    CHECK_CONTAINS(
        error_of(ErrorKind::kSystem, [&] { shm::Segment(seen, group_config(r, placement, "dp")); }),
        "rank 1 of 3 in group \"dp\": there is no shared memory for its base");
  });
}

GroupConfig with_engines(GroupConfig config, std::vector<std::string> engines) {
  config.engines = [engines = std::move(engines)] { return engines; };
  return config;
}

TEST(hosts_agree_on_what_carries_bytes_between_them) {
  const std::vector<std::string> both = {"fast", "slow"}, slow = {"slow"}, other = {"slow", "fast"};
  const struct {
    std::vector<std::string> engines[3];  // by host
    std::string agreed;
  } cases[] = {
      {{both, both, both}, "fast"}, {{both, other, slow}, "slow"}, {{other, both, both}, "slow"}};
  const Placement placement{{0, 1, 0, 2, 1}};
  for (const auto& [engines, agreed] : cases) {
    MemoryStore store;
    ranks::on_threads(5, [&](int r) {
      const std::vector<std::string>& own = engines[placement.host_of[r]];
      const shm::Segment group(store, with_engines(group_config(r, placement), own));
      CHECK_EQ(group.inter_host().engine, agreed);
    });
  }
}

TEST(all_ranks_use_rank_0s_network) {
  const Placement placement{{0, 1, 0, 2, 1}};
  for (const Link& link : {Link{}, Link{.latency = 0.1, .overhead = 1e-7, .bandwidth = 1.0 / 3}}) {
    MemoryStore store;
    ranks::on_threads(5, [&](int r) {
      GroupConfig config = group_config(r, placement);
      config.link = r == 0 ? link : Link{.latency = 1.0 * r, .bandwidth = 1e9};
      const shm::Segment group(store, config);
      const Link received = group.inter_host().link;
      CHECK_EQ(received.latency, link.latency);
      CHECK_EQ(received.overhead, link.overhead);
      CHECK_EQ(received.bandwidth, link.bandwidth);
      const std::size_t small = link.latency > 0 ? 256 : shm::Geometry(5).eager_nbytes;
      CHECK_EQ(group.geometry().small_nbytes, small);
      CHECK_EQ(group.geometry().eager_nbytes, shm::Geometry(5).eager_nbytes);
    });
  }
}

TEST(the_least_that_crosses_at_once_is_the_engines) {
  const Placement placement{{0, 1, 0}};
  for (const auto& [engine, least] : {std::pair{"gloo", 1024u}, std::pair{"other", 256u}}) {
    MemoryStore store;
    ranks::on_threads(3, [&](int r) {
      GroupConfig config = with_engines(group_config(r, placement), {engine});
      config.link = {.latency = 1e-6, .bandwidth = 1e6};
      CHECK_EQ(shm::Segment(store, config).geometry().small_nbytes, least);
    });
  }
}

TEST(where_hosts_have_no_engine_in_common_all_hear_what_each_has) {
  const Placement placement{{0, 1, 1, 0}};
  MemoryStore store;
  ranks::on_threads(4, [&](int r) {
    const std::string own = placement.host_of[r] == 0 ? "fast" : "slow";
    CHECK_CONTAINS(
        error_of(
            ErrorKind::kMismatch,
            [&] { shm::Segment(store, with_engines(group_config(r, placement, "dp"), {own})); }),
        "rank 0 has fast, rank 1 has slow. RINGCOMM_LINKS chooses");
  });
}

TEST(a_host_without_the_wanted_engine_raises_on_all) {
  const Placement placement{{0, 1, 1}};
  MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    GroupConfig config = with_engines(group_config(r, placement), {"fast"});
    if (r == 1) {
      config.engines = []() -> std::vector<std::string> {
        throw Error(ErrorKind::kLibrary, "there is nothing fast here");
      };
    }
    CHECK_CONTAINS(error_of(ErrorKind::kLibrary, [&] { shm::Segment(store, config); }),
                   "there is nothing fast here");
  });
}

// Rank 0 has read its messages, then rank 1 writes why it leaves, and then rank 0 sees it gone.
TEST(what_a_rank_wrote_before_it_ended_counts_more_than_that_it_has) {
  const Placement placement{{0, 1, 1}};
  MemoryStore store;
  std::atomic<bool> is_asked{false}, is_watched{false}, is_written{false};
  store.on_set = [&](const std::string&, const std::string& value) {
    if (value.find("there is nothing fast here") != std::string::npos) is_written = true;
  };
  const auto await = [](const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::sleep_for(1ms);
  };
  ranks::on_threads(3, [&](int r) {
    GroupConfig config = with_engines(group_config(r, placement), {"fast"});
    if (r == 0) {
      config.gone = [&](int rank, std::string* how) {
        if (rank != 1 || !is_asked) return false;
        is_watched = true;
        await(is_written);
        std::this_thread::sleep_for(20ms);  // until the message can be seen
        *how = "its process has ended";
        return true;
      };
    } else if (r == 1) {
      config.engines = [&]() -> std::vector<std::string> {
        is_asked = true;
        await(is_watched);
        throw Error(ErrorKind::kLibrary, "there is nothing fast here");
      };
    }
    CHECK_CONTAINS(error_of(ErrorKind::kLibrary, [&] { shm::Segment(store, config); }),
                   "there is nothing fast here");
  });
}

TEST(a_single_host_is_not_asked_for_engines) {
  MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    GroupConfig config = group_config(r, 3);
    config.engines = []() -> std::vector<std::string> {
      throw Error(ErrorKind::kLibrary, "asked");
    };
    CHECK_EQ(shm::Segment(store, config).inter_host().engine, "");
  });
}

// How many times a rank asks the store for something that is there, or writes to it. It also
// asks for what is not there yet, as long as it waits.
struct CountingStore : ChangedStore {
  explicit CountingStore(Store& store)
      : ChangedStore(store, [this](const std::string& key, std::string&) {
          if (key != "leader") ++count;  // asked for now and then by a rank that waits
        }) {}
  void set(const std::string& key, const std::string& value) override {
    ++count;
    ChangedStore::set(key, value);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    if (amount != 0) ++count;
    return ChangedStore::add(key, amount);
  }
  int count = 0;
};

TEST(only_the_first_of_a_host_asks_the_store_for_much) {
  for (const int ranks_per_host : {1, 8, 1000}) {
    for (const int n : {2, 16, 64, 256}) {
      Placement placement;
      for (int r = 0; r < n; ++r) placement.host_of.push_back(r / ranks_per_host);
      MemoryStore store;
      std::vector<int> counts(n);
      ranks::on_threads(n, [&](int r) {
        CountingStore counted(store);
        shm::Segment group(counted, with_engines(group_config(r, placement), {"fast", "slow"}));
        counts[r] = counted.count;
      });
      int total = 0;
      for (int r = 0; r < n; ++r) {
        total += counts[r];
        if (r > 0 && r % ranks_per_host == 0) CHECK(counts[r] <= 10 + ranks_per_host);
        if (r % ranks_per_host != 0) CHECK(counts[r] <= 10);
      }
      CHECK(total <= 12 * n + 20);
    }
  }
}

}  // namespace
