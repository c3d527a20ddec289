// Has the other ranks write their flight records before a rank raises.
//
// A rank that hangs does not write its record by itself, and a launcher ends it as soon as another
// rank has raised. So each rank that writes its record at a failure has a thread for the case that
// another rank fails first. The thread sleeps on a futex in shared memory, and needs nothing that
// the rank may hang in.
//
//   a rank with a failed call                    a rank that hangs
//     request = ++header.dump_request              its thread sleeps on state.dump.wakeups
//     wake(state.dump.wakeups) of each rank        writes the record
//     writes its own record                        state.dump.answered = request
//     waits until all have answered
//
// Between hosts the status messages (hosts/status_message.h) carry requests and answers, and the
// thread of a host's leader wakes the ranks of its host.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "shm/group.h"

namespace ringcomm::shm {

// That thread. It begins with a request that was made before.
class DumpListener {
 public:
  // write() must not throw. Throws NoThread.
  DumpListener(Group& group, std::function<void()> write);
  ~DumpListener() { leave(); }
  DumpListener(const DumpListener&) = delete;
  DumpListener& operator=(const DumpListener&) = delete;

  // Ends the thread. From now on no rank waits for this one's record.
  void leave();

 private:
  void run();

  Group& group_;
  RankState& own_;
  const std::function<void()> write_;
  std::atomic<bool> leaves_{false};
  std::thread thread_;
};

}  // namespace ringcomm::shm
