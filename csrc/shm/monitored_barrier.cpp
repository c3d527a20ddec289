#include "shm/monitored_barrier.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace ringcomm::shm {
namespace {

// Sleeps from one look to the next: this is a barrier to find faults with, not a fast one.
template <typename Ready>
bool wait_until(Group& group, const Deadline& deadline, Ready ready) {
  std::chrono::microseconds sleep(10);
  while (!ready()) {
    group.check("monitored_barrier");
    if (Clock::now() - deadline.start > deadline.timeout) return ready();
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, std::chrono::microseconds(1000));
  }
  return true;
}

std::string milliseconds_of(const Deadline& deadline) {
  return std::to_string(deadline.timeout.count()) + " ms";
}

void lead(Group& group, std::uint64_t number, bool wait_all_ranks, const Deadline& deadline) {
  if (deadline.timeout.count() <= 0) {
    throw Error(ErrorKind::kTimeout, "[Rank 0]: Rank 0 timed out in monitoredBarrier after " +
                                         milliseconds_of(deadline));
  }
  RankState& own = group.segment().state(0);
  std::vector<int> missing;
  for (int r = 1; r < group.world_size; ++r) {
    auto arrived = [&] {
      return group.segment().state(r).barrier.load(std::memory_order_acquire) >= number;
    };
    if (wait_until(group, deadline, arrived)) continue;
    missing.push_back(r);
    if (!wait_all_ranks) break;
  }
  if (missing.empty()) {
    own.barrier.store(number, std::memory_order_release);
    return;
  }
  own.rejected_barrier.store(number, std::memory_order_release);
  std::string ranks = missing.size() == 1 ? "Rank " : "Ranks ";
  for (std::size_t i = 0; i < missing.size(); ++i) {
    ranks += (i > 0 ? ", " : "") + std::to_string(missing[i]);
  }
  throw Error(ErrorKind::kTimeout, "[Rank 0]: " + ranks + " failed to pass monitoredBarrier in " +
                                       milliseconds_of(deadline));
}

void follow(Group& group, std::uint64_t number, const Deadline& deadline) {
  RankState& leader = group.segment().state(0);
  group.segment().state(group.rank).barrier.store(number, std::memory_order_release);
  auto answered = [&] {
    return leader.barrier.load(std::memory_order_acquire) >= number ||
           leader.rejected_barrier.load(std::memory_order_acquire) >= number;
  };
  const bool came = wait_until(group, deadline, answered);
  if (came && leader.barrier.load(std::memory_order_acquire) >= number) return;
  throw Error(ErrorKind::kTimeout,
              "[Rank " + std::to_string(group.rank) + "]: Rank " + std::to_string(group.rank) +
                  " successfully reached monitoredBarrier, but received errors while waiting for "
                  "send/recv from rank 0: " +
                  (came ? "it reports that other ranks failed to pass the barrier"
                        : "no answer in " + milliseconds_of(deadline)) +
                  ". Please check rank 0 logs for faulty rank.");
}

}  // namespace

void monitored_barrier(Group& group, std::uint64_t number, bool wait_all_ranks,
                       const Deadline& deadline) {
  if (group.rank == 0) {
    lead(group, number, wait_all_ranks, deadline);
  } else {
    follow(group, number, deadline);
  }
}

}  // namespace ringcomm::shm
