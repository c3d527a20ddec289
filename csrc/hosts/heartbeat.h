// How hosts know of each other while nothing else is sent: a thread of each host's leader.
//
// It reports to the other leaders what the ranks of its host do (hosts/status_message.h): at once
// what others may wait for, such as that a rank has died or the group has failed, and all of it
// once in a while, so that a host that sends nothing is known to be gone. What it receives it
// writes to the memory of its host, where all ranks look. It also moves what a busy leader leaves
// undone.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "hosts/announcement_forwarder.h"
#include "hosts/engine.h"
#include "hosts/status_message.h"

namespace ringcomm::hosts {

class Heartbeat {
 public:
  Heartbeat(Group& group, links::Engine& links, AnnouncementForwarder& forwarder);
  ~Heartbeat() { leave(); }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Sends a last status message, and ends.
  void leave();

 private:
  // Receives posted ahead, since a leader that leaves sends its last messages close together.
  static constexpr std::size_t kAhead = 4;

  struct Incoming {
    std::unique_ptr<std::byte[]> bytes;
    links::Request request;
  };
  struct Other {
    explicit Other(int leader) : leader(leader) {}

    const int leader;
    std::uint64_t sent = 0, posted = 0, heard = 0;
    std::vector<std::byte> out;
    links::Request sending;
    std::size_t room = 0;
    Incoming incoming[kAhead];
  };

  // If the other constructor throws, the destructor cancels what it has posted.
  struct Empty {};
  Heartbeat(Group& group, links::Engine& links, AnnouncementForwarder& forwarder, Empty);
  void run();
  void send_last_message();
  void tick();
  void mark_others_suspended(Clock::time_point now);
  void look_at_processes();
  void look_at_connections();
  void listen();
  void post(Other& other, Incoming& incoming);
  // False: it is no status message of such ranks.
  bool take(std::span<const std::byte> bytes, int leader);
  // True: what was to be sent is on its way to all.
  bool speak(bool all);
  // Adds what concerns devices, and has not been sent.
  void add_device_status(StatusMessage& word);
  void note_sent(const StatusMessage& word);
  bool has_spoken() const;

  Group& group_;
  links::Engine& links_;
  AnnouncementForwarder& forwarder_;
  const std::vector<int> ranks_;  // of this host
  std::vector<std::unique_ptr<Other>> others_;
  StatusMessage said_;
  std::set<std::pair<int, int>> sent_unique_ids_;
  std::map<int, std::uint64_t> sent_calls_;  // the last of each rank
  Clock::time_point last_tick_{};
  Clock::time_point speak_next_{};
  Clock::time_point look_next_{};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool leaves_ = false;
  std::thread thread_;
};

}  // namespace ringcomm::hosts
