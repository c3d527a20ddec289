// Making a group: how its ranks come to share memory, and that every failure is reported and
// leaves nothing in /dev/shm. And the barrier that names missing ranks.
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "file_store.h"
#include "memory_store.h"
#include "scarce_memory.h"
#include "seen_stores.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::contains;
using check::error_of;
using ranks::ChangedStore;
using ranks::group_config;
using ranks::kPatience;
using ranks::look_elsewhere;
using ranks::MemoryStore;
using ranks::WatchedStore;
using ranks::with_group;

bool exists(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0;
}

void check_all_works(Communicator& communicator) {
  for (const std::size_t count : {10, 100'000}) {
    std::vector<float> data(count, 1.0f);
    communicator.all_reduce(data.data(), data.data(), count, {DType::kFloat32, ReduceOp::kSum},
                            kPatience);
    CHECK(data == std::vector<float>(count, static_cast<float>(communicator.world_size())));
  }
}

TEST(the_memory_is_private_and_has_no_name) {
  constexpr int n = 3;
  WatchedStore store;
  store.on_path = [](const std::string& path) {
    struct stat file {};
    CHECK_EQ(stat(path.c_str(), &file), 0);
    CHECK_EQ(file.st_mode & 0777u, 0600u);
    CHECK_EQ(file.st_nlink, 0u);
    CHECK_EQ(static_cast<std::size_t>(file.st_size), shm::Geometry(n).nbytes);
    CHECK_EQ(static_cast<std::size_t>(file.st_blocks) * 512, shm::Geometry(n).base_nbytes);
  };
  ranks::on_threads(n, [&](int r) {
    Communicator communicator(store, group_config(r, n), Selection{});
    check_all_works(communicator);
  });
  CHECK_EQ(store.paths.size(), 1u);
  CHECK(store.paths[0].starts_with("/proc/"));
}

void bind(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  CHECK_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

TEST(ranks_share_cores_if_they_are_more_than_the_cores_of_all_of_them) {
  cpu_set_t set;
  CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  const int num_cores = static_cast<int>(cores.size());
  for (const int n : {1, 2, num_cores, num_cores + 1}) {
    ranks::with_group(n, "auto", [&](Communicator& communicator) {
      CHECK_EQ(communicator.group().shares_cores(), n > num_cores);
    });
    MemoryStore one_each, one_for_all;
    ranks::on_threads(n, [&](int r) {
      bind(cores[r % num_cores]);
      CHECK_EQ(shm::Group(one_each, group_config(r, n)).shares_cores(), n > num_cores);
      bind(cores[0]);
      CHECK_EQ(shm::Group(one_for_all, group_config(r, n)).shares_cores(), n > 1);
    });
  }
}

TEST(without_memfds_it_has_a_name_until_all_have_mapped_it) {
  const host::Restored restored;
  host::has_memfds = false;
  constexpr int n = 3;
  WatchedStore store;
  store.on_path = [](const std::string& path) {
    struct stat file {};
    CHECK_EQ(stat(path.c_str(), &file), 0);
    CHECK_EQ(file.st_mode & 0777u, 0600u);
  };
  ranks::on_threads(n, [&](int r) {
    Communicator communicator(store, group_config(r, n), Selection{});
    CHECK(!exists(store.paths.at(0)));
    check_all_works(communicator);
  });
  CHECK(store.paths[0].starts_with("/dev/shm/"));
}

TEST(where_one_rank_cannot_reach_a_memfd_all_take_a_name) {
  constexpr int n = 3;
  WatchedStore store;
  ChangedStore other(store, look_elsewhere);
  ranks::on_threads(n, [&](int r) {
    Store& own = r == 1 ? static_cast<Store&>(other) : store;
    Communicator communicator(own, group_config(r, n), Selection{});
    check_all_works(communicator);
  });
  CHECK_EQ(store.paths.size(), 2u);
  CHECK(store.paths[0].starts_with("/proc/") && store.paths[1].starts_with("/dev/shm/"));
  CHECK(!exists(store.paths[1]));
}

TEST(ranks_and_world_sizes_that_cannot_be) {
  MemoryStore store;
  auto make = [&](int rank, int world_size) {
    return error_of(ErrorKind::kInvalidArgument,
                    [&] { Communicator(store, group_config(rank, world_size), Selection{}); });
  };
  for (const int n : {-1, 0}) {
    CHECK_CONTAINS(make(0, n), "world_size is " + std::to_string(n) + "; it must be at least 1");
  }
  for (const int r : {-1, 2}) {
    CHECK_CONTAINS(make(r, 2),
                   "rank is " + std::to_string(r) + "; it must be 0 to world_size - 1 = 1");
  }
}

GroupConfig impatient(int rank, int world_size, std::chrono::milliseconds timeout) {
  GroupConfig config = group_config(rank, world_size);
  config.timeout = timeout;
  return config;
}

TEST(a_rank_that_never_comes_is_named_by_all) {
  MemoryStore store;
  std::string texts[3];
  ranks::on_threads(4, [&](int r) {
    if (r == 2) return;
    GroupConfig config = impatient(r, 4, r == 0 ? 300ms : kPatience);
    config.members = {.group = "tp", .global_ranks = {4, 5, 6, 7}};
    texts[r == 3 ? 2 : r] =
        error_of(ErrorKind::kTimeout, [&] { Communicator(store, config, Selection{}); });
  });
  CHECK_CONTAINS(texts[0], "rank 4 (rank 0 of group tp) waited ");
  CHECK_CONTAINS(texts[0], "rank 6 (rank 2 of group tp) did not come");
  CHECK(texts[0] == texts[1] && texts[1] == texts[2]);
}

TEST(a_rank_that_comes_and_does_not_go_on_is_named_by_all_and_nothing_is_left) {
  const host::Restored restored;
  for (const bool has_memfds : {true, false}) {
    host::has_memfds = has_memfds;
    WatchedStore store;
    std::string texts[3];
    ranks::on_threads(4, [&](int r) {
      const GroupConfig config = impatient(r, 4, r == 0 ? 300ms : kPatience);
      if (r == 2) {
        Bootstrap(store, config);
        return;
      }
      texts[r == 3 ? 2 : r] =
          error_of(ErrorKind::kTimeout, [&] { Communicator(store, config, Selection{}); });
    });
    CHECK_CONTAINS(texts[0], "all came, and rank 2 did not go on");
    CHECK(texts[0] == texts[1] && texts[1] == texts[2]);
    CHECK_EQ(store.paths.size(), 1u);
    CHECK(!exists(store.paths[0]));
  }
}

TEST(without_rank_0_the_others_say_so) {
  MemoryStore store;
  ranks::on_threads(4, [&](int r) {
    if (r == 0 || r == 3) return;
    const std::string text = error_of(
        ErrorKind::kTimeout, [&] { Communicator(store, impatient(r, 4, 100ms), Selection{}); });
    CHECK_CONTAINS(text, "rank " + std::to_string(r) + " waited ");
    CHECK_CONTAINS(text, "ranks 0 and 3 did not come");
  });
}

// The text of a ticket, as if a process had written it that has ended.
std::string of_ended_process(std::string ticket) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  const std::string own = (RecordWriter() << getpid()).text();
  return ticket.replace(ticket.find(own), own.size(), (RecordWriter() << child).text());
}

// Lets a rank come that has ended since.
void come_and_end(Store& store, const GroupConfig& config) {
  struct Recording : ChangedStore {
    using ChangedStore::ChangedStore;
    void set(const std::string& key, const std::string& value) override {
      store.set(key, of_ended_process(value));
    }
  } recording(store, [](const std::string&, std::string&) {});
  Bootstrap(recording, config);
}

// What is left of attempts in which ranks ended, or gave up, does no harm later.
TEST(a_store_that_has_seen_other_attempts) {
  MemoryStore store;
  for (const int r : {1, 0, 2}) {
    error_of(ErrorKind::kTimeout, [&] { Communicator(store, impatient(r, 3, 1ms), Selection{}); });
  }
  for (const int r : {0, 1, 2}) come_and_end(store, group_config(r, 3));
  for (int i = 0; i < 3; ++i) {
    ranks::on_threads(3, [&](int r) {
      Communicator communicator(store, group_config(r, 3), Selection{});
      check_all_works(communicator);
    });
  }
}

std::string listed(const std::vector<std::string>& keys) {
  std::string list;
  for (const std::string& key : keys) list += key + " ";
  return list;
}

TEST(a_group_leaves_nothing_in_its_store) {
  for (const Placement& placement :
       {Placement{{0}}, Placement{{0, 0, 0}}, Placement{{0, 1, 1}}, Placement{{0, 1, 2, 1, 0}}}) {
    MemoryStore store;
    ranks::on_threads(static_cast<int>(placement.host_of.size()),
                      [&](int r) { shm::Segment(store, group_config(r, placement)); });
    CHECK_EQ(listed(store.keys()), "");
  }
}

TEST(a_refused_group_leaves_nothing_in_its_store) {
  for (const Placement& placement : {Placement{{0, 0, 0}}, Placement{{0, 1, 1}}}) {
    MemoryStore store;
    ranks::on_threads(3, [&](int r) {
      if (r == 0) {
        decline(store, group_config(r, placement), make_error(ErrorKind::kSystem, "too old"));
        return;
      }
      CHECK_CONTAINS(
          error_of(ErrorKind::kSystem, [&] { shm::Segment(store, group_config(r, placement)); }),
          "rank 0 could not join the group: too old");
    });
    CHECK_EQ(listed(store.keys()), "");
  }
}

// Ranks make the next group while others still leave the last one's set-up.
TEST(groups_of_one_name_follow_each_other_in_one_store) {
  const Placement placement{{0, 0, 1, 1, 2}};
  MemoryStore store;
  ranks::on_threads(5, [&](int r) {
    std::mt19937 random(r);
    struct SlowStore : ChangedStore {
      SlowStore(Store& store, std::mt19937& random)
          : ChangedStore(store, [](const std::string&, std::string&) {}), random(random) {}
      void pause() const {
        if (random() % 8 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      }
      void set(const std::string& key, const std::string& value) override {
        pause();
        ChangedStore::set(key, value);
      }
      std::int64_t add(const std::string& key, std::int64_t amount) override {
        pause();
        return ChangedStore::add(key, amount);
      }
      bool erase(const std::string& key) override {
        pause();
        return ChangedStore::erase(key);
      }
      std::mt19937& random;
    } slow(store, random);
    std::string last;
    for (int i = 0; i < 60; ++i) {
      const shm::Segment segment(slow, group_config(r, placement));
      CHECK(segment.placement() == placement);
      CHECK(segment.name() != last);
      last = segment.name();
    }
  });
  CHECK_EQ(listed(store.keys()), "");
}

// A store that erases nothing, as c10d's base class.
TEST(stores_that_keep_everything_do) {
  struct KeepingStore : MemoryStore {
    bool erase(const std::string&) override { return false; }
  } store;
  for (int i = 0; i < 3; ++i) {
    ranks::on_threads(3,
                      [&](int r) { shm::Segment(store, group_config(r, Placement{{0, 1, 1}})); });
  }
  CHECK(!store.keys().empty());
}

TEST(a_rank_that_ends_while_the_group_is_made_is_noticed) {
  for (const int dead : {0, 1}) {
    for (const bool comes_first : {false, true}) {
      MemoryStore store;
      std::atomic<int> tickets{0};
      store.on_set = [&](const std::string& key, const std::string&) {
        if (key.starts_with("tickets/")) ++tickets;
      };
      std::thread ended([&] {
        while (!comes_first && tickets < 2) std::this_thread::sleep_for(1ms);
        come_and_end(store, group_config(dead, 3));
      });
      std::string texts[3];
      ranks::on_threads(3, [&](int r) {
        if (r == dead) return;
        while (comes_first && tickets == 0) std::this_thread::sleep_for(1ms);
        texts[r] = error_of(ErrorKind::kPeerDied,
                            [&] { Communicator(store, group_config(r, 3), Selection{}); });
        CHECK_CONTAINS(texts[r], "rank " + std::to_string(dead) + " will not come: its process ");
      });
      ended.join();
      if (dead == 1) CHECK_EQ(texts[0], texts[2]);
    }
  }
}

// fork() and ThreadSanitizer do not go together.
#ifndef __SANITIZE_THREAD__

// "" if this process has mapped none.
std::string mapped_file_with_a_name() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find("/dev/shm/ringcomm-");
    if (at != std::string::npos) return line.substr(at);
  }
  return "";
}

TEST(a_rank_that_has_mapped_a_named_file_removes_the_name_when_its_maker_is_killed) {
  const host::Restored restored;
  host::has_memfds = false;
  std::string folder = std::filesystem::temp_directory_path() / "ringcomm-XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  ranks::FileStore store(folder);
  const pid_t maker = fork();
  if (maker == 0) {
    Communicator(store, group_config(0, 4), Selection{});
    _exit(0);
  }
  std::string path;
  ranks::on_threads(4, [&](int r) {
    if (r == 0) {
      while (path.empty()) {
        std::this_thread::sleep_for(1ms);
        path = mapped_file_with_a_name();
      }
      CHECK(exists(path));
      kill(maker, SIGKILL);
      waitpid(maker, nullptr, 0);
    } else if (r == 3) {
      Bootstrap(store, group_config(r, 4));  // and does not go on
    } else {
      CHECK_CONTAINS(error_of(ErrorKind::kPeerDied,
                              [&] { Communicator(store, group_config(r, 4), Selection{}); }),
                     "rank 0 will not come: its process " + std::to_string(maker));
    }
  });
  CHECK(!exists(path));
  std::filesystem::remove_all(folder);
}

#endif

TEST(a_rank_that_is_known_to_be_gone_is_not_waited_for) {
  MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    GroupConfig config = group_config(r, 3);
    config.gone = [](int rank, std::string* how) {
      *how = "it has closed the default group";
      return rank == 2;
    };
    CHECK_CONTAINS(
        error_of(ErrorKind::kPeerDied, [&] { Communicator(store, config, Selection{}); }),
        "rank 2 will not come: it has closed the default group");
  });
}

TEST(ranks_that_want_different_groups_raise) {
  MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    const std::string text = error_of(ErrorKind::kMismatch, [&] {
      Communicator(store, group_config(r, r == 0 ? 2 : 5), Selection{});
    });
    CHECK_CONTAINS(text, "the ranks do not agree on who is in the group: rank 0 makes one of 2");
    CHECK_CONTAINS(text, "came as rank 1 of 5");
  });
  MemoryStore other;
  ranks::on_threads(2, [&](int r) {
    GroupConfig config = group_config(r, 2);
    config.members.global_ranks = {0, static_cast<std::uint64_t>(1 + r)};
    CHECK_CONTAINS(
        error_of(ErrorKind::kMismatch, [&] { Communicator(other, config, Selection{}); }),
        "of other ranks");
  });
}

TEST(too_little_memory_to_begin_with_raises_on_all) {
  const host::Restored restored;
  for (const bool has_memfds : {true, false}) {
    host::has_memfds = has_memfds;
    host::file_nbytes = 100;
    MemoryStore store;
    ranks::on_threads(2, [&](int r) {
      CHECK_CONTAINS(error_of(ErrorKind::kSystem,
                              [&] { Communicator(store, group_config(r, 2, "dp"), Selection{}); }),
                     "rank 0 of 2 in group \"dp\": there is no shared memory for its base");
    });
  }
}

TEST(a_monitored_barrier_passes_when_all_come) {
  with_group(4, "auto", [](Communicator& communicator) {
    for (int i = 0; i < 20; ++i) {
      if (i % 4 == communicator.rank()) std::this_thread::sleep_for(1ms);
      communicator.monitored_barrier(i % 2 == 0, kPatience);
    }
  });
}

TEST(a_monitored_barrier_names_missing_ranks_and_breaks_nothing) {
  for (const bool all : {false, true}) {
    with_group(5, "auto", [all](Communicator& communicator) {
      const int r = communicator.rank();
      const bool late = r == 2 || r == 4;
      if (late) std::this_thread::sleep_for(500ms);
      const std::string text = error_of(ErrorKind::kTimeout, [&] {
        communicator.monitored_barrier(all, r == 0 ? 200ms : kPatience);
      });
      if (r == 0) {
        CHECK_CONTAINS(text, all ? "Ranks 2, 4 failed to pass monitoredBarrier in 200 ms"
                                 : "Rank 2 failed to pass monitoredBarrier in 200 ms");
      } else {
        CHECK_CONTAINS(text, "[Rank " + std::to_string(r) + "]: ");
        CHECK_CONTAINS(text, "other ranks failed to pass the barrier");
      }
      communicator.monitored_barrier(true, kPatience);
      communicator.barrier(kPatience);
    });
  }
}

TEST(a_monitored_barrier_without_rank_0_or_without_time) {
  with_group(2, "auto", [](Communicator& communicator) {
    const bool leads = communicator.rank() == 0;
    const std::string text = error_of(
        ErrorKind::kTimeout, [&] { communicator.monitored_barrier(false, leads ? 0ms : 100ms); });
    CHECK_CONTAINS(text, leads ? "Rank 0 timed out in monitoredBarrier" : "no answer in 100 ms");
    communicator.barrier(kPatience);
    communicator.monitored_barrier(false, kPatience);
  });
}

}  // namespace
