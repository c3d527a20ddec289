// A barrier led by rank 0, which can name the ranks that did not come.
//
// Every rank counts its monitored barriers. Rank r > 0 publishes the number it has arrived at and
// waits for rank 0 to release or to reject that number; rank 0 collects the arrivals first. Nothing
// else of the group is touched, so a barrier that fails does not break it, unless memory runs out.
#include <exception>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "shm/communicator.h"

namespace ringcomm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// This is a barrier to find faults with, not a fast one.
void pause(Group& group, Poll& poll) {
  group.check("monitored_barrier");
  check_interrupt();
  poll.sleep();
}

std::string milliseconds_of(milliseconds time) { return std::to_string(time.count()) + " ms"; }

struct Missing {
  std::vector<int> ranks;
  std::map<int, std::string> gone;  // those of them that will never come, and why
  bool overdue = false;
};

// Empty ranks: all have come.
Missing await_arrivals(Group& group, std::uint64_t number, bool wait_all_ranks,
                       const Deadline& deadline) {
  const auto has_come = [&](int r) {
    return group.segment().state(r).barrier.arrived.load(std::memory_order_acquire) >= number;
  };
  Poll poll(microseconds(10), kPollEvery);
  for (Missing missing;;) {
    missing.overdue = deadline.has_passed();  // before the last look
    missing.ranks.clear();
    for (int r = 1; r < group.world_size; ++r) {
      if (!has_come(r)) missing.ranks.push_back(r);
    }
    if (missing.ranks.empty()) return missing;
    if (missing.overdue || poll.looks_around()) {
      for (const int r : missing.ranks) {
        std::string how;
        if (group.gone(r, &how) && !has_come(r)) missing.gone[r] = how;
      }
    }
    const bool all_are_gone = missing.gone.size() == missing.ranks.size();
    if (missing.overdue || (wait_all_ranks ? all_are_gone : !missing.gone.empty())) return missing;
    pause(group, poll);
  }
}

void lead(Group& group, std::uint64_t number, bool wait_all_ranks, const Deadline& deadline) {
  const std::string prefix = "[Rank " + std::to_string(group.members.global(0)) + "]: ";
  if (deadline.timeout.count() <= 0) {
    throw Error(ErrorKind::kTimeout, prefix + "Rank " + std::to_string(group.members.global(0)) +
                                         " timed out in monitoredBarrier after " +
                                         milliseconds_of(deadline.timeout));
  }
  RankState& own = group.segment().state(0);
  Missing missing = await_arrivals(group, number, wait_all_ranks, deadline);
  if (missing.ranks.empty()) {
    own.barrier.arrived.store(number, std::memory_order_release);
    return;
  }
  own.barrier.given_up.store(number, std::memory_order_release);
  if (!wait_all_ranks) {
    missing.ranks = {missing.gone.empty() ? missing.ranks.front() : missing.gone.begin()->first};
  }
  std::string ranks = missing.ranks.size() == 1 ? "Rank " : "Ranks ";
  std::string why;
  for (const int r : missing.ranks) {
    ranks += (r != missing.ranks.front() ? ", " : "") + std::to_string(group.members.global(r));
    const auto gone = missing.gone.find(r);
    if (gone == missing.gone.end()) continue;
    why += (why.empty() ? ": " : "; ") + group.members.name(r) + " will not come, " + gone->second;
  }
  const milliseconds waited =
      missing.overdue ? deadline.timeout
                      : std::chrono::duration_cast<milliseconds>(Clock::now() - deadline.start);
  throw Error(
      missing.overdue ? ErrorKind::kTimeout : ErrorKind::kPeerDied,
      prefix + ranks + " failed to pass monitoredBarrier in " + milliseconds_of(waited) + why);
}

void follow(Group& group, std::uint64_t number, const Deadline& deadline) {
  RankState& leader = group.segment().state(0);
  group.segment().state(group.rank).barrier.arrived.store(number, std::memory_order_release);
  const auto is_released = [&] {
    return leader.barrier.arrived.load(std::memory_order_acquire) >= number;
  };
  const auto is_rejected = [&] {
    return leader.barrier.given_up.load(std::memory_order_acquire) >= number;
  };
  Poll poll(microseconds(10), kPollEvery);
  ErrorKind kind = ErrorKind::kTimeout;
  for (std::string why;;) {
    if (is_released()) return;
    if (is_rejected()) why = "it reports that other ranks failed to pass the barrier";
    if (!why.empty()) {
      const std::string own = "Rank " + std::to_string(group.members.global(group.rank));
      throw Error(kind, "[" + own + "]: " + own +
                            " successfully reached monitoredBarrier, but received errors while "
                            "waiting for send/recv from " +
                            group.members.name(0) + ": " + why + ". Please check " +
                            group.members.name(0) + " logs for faulty rank.");
    }
    // What is found out here is raised only if rank 0 has not answered even so.
    std::string how;
    if (poll.looks_around() && group.gone(0, &how)) {
      why = will_not_answer("it", how);
      kind = ErrorKind::kPeerDied;
    } else if (deadline.has_passed()) {
      why = "no answer in " + milliseconds_of(deadline.timeout);
    } else {
      pause(group, poll);
    }
  }
}

}  // namespace
}  // namespace ringcomm::shm

namespace ringcomm {

void Communicator::monitored_barrier(bool wait_all_ranks, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::uint64_t number = ++barriers_;
  try {
    if (group_.rank == 0) {
      shm::lead(group_, number, wait_all_ranks, deadline);
    } else {
      shm::follow(group_, number, deadline);
    }
  } catch (const std::bad_alloc&) {  // the others may have passed, or wait for this rank
    group_.fail_with(std::current_exception(), [] { return std::string("monitored_barrier"); });
    throw;
  }
}

}  // namespace ringcomm
