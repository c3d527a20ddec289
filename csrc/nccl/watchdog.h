// Looks after what has been enqueued on a device, from a thread of its own: nothing on a device
// notices that a peer is late, dead, or does something else.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nccl/handles.h"
#include "shm/board.h"
#include "shm/group.h"
#include "shm/idle.h"
#include "status.h"

namespace ringcomm::nccl {

struct Pending {
  std::string what;        // "all_reduce(count=256, dtype=float32, op=sum) #17"
  std::uint64_t sequence;  // of a collective; 0: a message
  int peer;                // of a message
  shm::Deadline deadline;
  Event end;  // recorded behind the operation
};

class Watchdog {
 public:
  // check_library throws if the library has seen a failure. on_failure is called once, on the
  // watchdog's thread, with what it found; nothing is looked after any more then.
  Watchdog(shm::Group& group, int device, std::function<void()> check_library,
           std::function<void(const Error&)> on_failure);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Pending pending);

  // An event to record, used before if possible.
  Event new_event();

  // Whether all that was added is done, by then.
  bool drain(const shm::Deadline& deadline);

 private:
  void run();
  // Forgets what is done; throws what is wrong with the rest.
  void look();
  void check_deadline(const Pending& pending);
  void check_agreement(const Pending& pending);
  void check_peers(const Pending& pending);
  std::string describe_awaited(const Pending& pending);

  shm::Group& group_;
  shm::Board board_;
  const int device_;
  const std::function<void()> check_library_;
  const std::function<void(const Error&)> on_failure_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable drained_;
  std::list<Pending> pending_;
  std::vector<Event> unused_;
  bool failed_ = false;
  bool stop_ = false;
  // Since when a peer that is gone has been waited for: the end of its part may be on its way.
  shm::Clock::time_point missed_since_{};
  std::thread thread_;
};

}  // namespace ringcomm::nccl
