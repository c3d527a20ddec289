// Making a group: what the segment looks like while it has a name, and that every failure is told
// and leaves nothing in /dev/shm. And the barrier that says who is missing.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "memory_store.h"
#include "one_mapping.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::contains;
using check::error_of;
using ranks::kPatience;
using ranks::MemoryStore;
using ranks::with_group;

// Where the segment whose name is set in the store lies; "" for other keys and values.
std::string path_in(const std::string& key, const std::string& value) {
  const std::size_t at = value.find("/ringcomm-");
  return key == "segment" && at != std::string::npos ? "/dev/shm" + value.substr(at) : "";
}

bool exists(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0;
}

TEST(the_segment_is_private_and_has_no_name_once_all_have_mapped_it) {
  constexpr int n = 3;
  MemoryStore store;
  std::string path;
  store.on_set = [&](const std::string& key, const std::string& value) {
    if (path_in(key, value).empty()) return;
    path = path_in(key, value);
    struct stat file {};
    CHECK_EQ(stat(path.c_str(), &file), 0);
    CHECK_EQ(file.st_mode & 0777u, 0600u);
    CHECK_EQ(static_cast<std::size_t>(file.st_size), shm::Geometry(n).nbytes);
    CHECK(static_cast<std::size_t>(file.st_blocks) * 512 >= shm::Geometry(n).nbytes);
  };
  ranks::on_threads(n, [&](int r) {
    Communicator communicator(store, r, n, Algorithm::kAuto, kPatience);
    CHECK(!path.empty() && !exists(path));
    communicator.barrier(kPatience);
  });
}

TEST(a_segment_fits_a_container) {
  for (int n = 1; n <= kMaxWorldSize; ++n) CHECK(shm::Geometry(n).nbytes < 64u << 20);
}

TEST(ranks_and_world_sizes_that_cannot_be) {
  MemoryStore store;
  auto make = [&](int rank, int world_size) {
    return error_of(ErrorKind::kInvalidArgument,
                    [&] { Communicator(store, rank, world_size, Algorithm::kAuto, kPatience); });
  };
  for (const int n : {-1, 0, kMaxWorldSize + 1}) {
    CHECK_CONTAINS(make(0, n),
                   "world_size is " + std::to_string(n) + "; ranks sharing memory can be 1 to 64");
  }
  for (const int r : {-1, 2}) {
    CHECK_CONTAINS(make(r, 2),
                   "rank is " + std::to_string(r) + "; it must be 0 to world_size - 1 = 1");
  }
}

TEST(a_rank_that_never_joins_fails_the_others_and_leaves_nothing) {
  MemoryStore store;
  std::string path;
  store.on_set = [&](const std::string& key, const std::string& value) {
    if (!path_in(key, value).empty()) path = path_in(key, value);
  };
  std::thread second([&] {
    const std::string text = error_of(
        ErrorKind::kSystem, [&] { Communicator(store, 1, 3, Algorithm::kAuto, kPatience); });
    CHECK_CONTAINS(text, "rank 0 could not set up the group: ");
    CHECK_CONTAINS(text, "mapped/2");
  });
  CHECK_THROWS(Communicator(store, 0, 3, Algorithm::kAuto, Communicator::Timeout(100)),
               std::exception);
  second.join();
  CHECK(!path.empty() && !exists(path));
  // Too late: told at once what happened.
  CHECK_CONTAINS(
      error_of(ErrorKind::kSystem, [&] { Communicator(store, 2, 3, Algorithm::kAuto, kPatience); }),
      "rank 0 could not set up the group: ");
}

TEST(a_rank_that_cannot_join_fails_all_and_leaves_nothing) {
  // Rank 1 believes in a larger group.
  MemoryStore store;
  std::string path;
  store.on_set = [&](const std::string& key, const std::string& value) {
    if (!path_in(key, value).empty()) path = path_in(key, value);
  };
  ranks::on_threads(2, [&](int r) {
    const std::string text = error_of(ErrorKind::kSystem, [&] {
      Communicator(store, r, r == 0 ? 2 : 5, Algorithm::kAuto, kPatience);
    });
    CHECK_CONTAINS(text, "the shared memory of rank 0 has");
    if (r == 0) CHECK_CONTAINS(text, "rank 1 could not join the group: ");
  });
  CHECK(!path.empty() && !exists(path));
}

TEST(another_host_is_told_from_a_failure_of_rank_0) {
  MemoryStore store;
  store.set("segment", "segment:another boot\n/ringcomm-0");
  CHECK_CONTAINS(error_of(ErrorKind::kInvalidArgument,
                          [&] { Communicator(store, 1, 2, Algorithm::kAuto, kPatience); }),
                 "do not share memory");
  MemoryStore failed;
  failed.set("segment", "rank 0 could not set up the group: line 1\nline 2");
  CHECK_CONTAINS(error_of(ErrorKind::kSystem,
                          [&] { Communicator(failed, 1, 2, Algorithm::kAuto, kPatience); }),
                 "line 1\nline 2");
}

#ifndef __SANITIZE_THREAD__

// In a child that mounts a /dev/shm of 1 MiB for itself alone; exits 0, 1, or 77: not allowed here.
TEST(too_little_shared_memory_says_how_much_is_needed) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") != 0) {
      _exit(77);
    }
    MemoryStore store;
    const std::string text = error_of(
        ErrorKind::kSystem, [&] { Communicator(store, 0, 2, Algorithm::kAuto, kPatience); });
    CHECK_CONTAINS(text, "/dev/shm is too small for a group of 2 ranks");
    CHECK_CONTAINS(text, "(" + std::to_string(shm::Geometry(2).nbytes) + " bytes) needed");
    CHECK_CONTAINS(text, "1 MiB (1048576 bytes) free");
    CHECK_CONTAINS(store.get("ready", kPatience), "is too small");
    CHECK(std::system("test -z \"$(ls -A /dev/shm)\"") == 0);
    std::cout.flush();
    _exit(check::failures == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::cout << "skipped: no right to mount a small /dev/shm" << std::endl;
    return;
  }
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif

TEST(a_monitored_barrier_passes_when_all_come) {
  with_group(4, Algorithm::kAuto, [](Communicator& communicator) {
    for (int i = 0; i < 20; ++i) {
      if (i % 4 == communicator.rank()) std::this_thread::sleep_for(1ms);
      communicator.monitored_barrier(i % 2 == 0, kPatience);
    }
  });
}

TEST(a_monitored_barrier_names_who_is_missing_and_breaks_nothing) {
  for (const bool all : {false, true}) {
    with_group(5, Algorithm::kAuto, [all](Communicator& communicator) {
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
  with_group(2, Algorithm::kAuto, [](Communicator& communicator) {
    const bool leads = communicator.rank() == 0;
    const std::string text = error_of(
        ErrorKind::kTimeout, [&] { communicator.monitored_barrier(false, leads ? 0ms : 100ms); });
    CHECK_CONTAINS(text, leads ? "Rank 0 timed out in monitoredBarrier" : "no answer in 100 ms");
    communicator.barrier(kPatience);
    communicator.monitored_barrier(false, kPatience);
  });
}

}  // namespace
