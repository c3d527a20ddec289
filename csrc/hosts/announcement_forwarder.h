// Announcements between hosts.
//
// Every collective begins with an announcement by each rank (shm/exchange.h), which the others read
// in the memory of their host. So each host's memory has a place for the announcements of all
// ranks, and those of other hosts' ranks are mirrored there: the leader of a host waits until all
// ranks on it have announced, sends what they have to the other leaders, in one message each, and
// writes what comes from them where all ranks of its host look for it. What is small has crossed
// the network once then, each way, and so has the comparison of calls.
//
//        host 0                                    host 1
//        rank 0 (leads)   [0][1]  -------------->  mirrors [0][1]     rank 2 (leads)
//        rank 1           mirrors [2][3]  <------  [2][3]             rank 3
//
// A rank that is late must not hide which others have come: after a while the leader sends what
// there is, and the rest later. If the leader itself is late its heartbeat does that
// (hosts/heartbeat.h).
//
// Invariant: no place is overwritten while a rank reads it, as on one host: announcement s + 2 of a
// rank exists only after all ranks of all hosts have announced s + 1, so are done with s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "hosts/engine.h"
#include "hosts/streams.h"

namespace ringcomm::hosts {

// On the leader of a host, in a group that spans hosts.
class AnnouncementForwarder {
 public:
  // Throws Error (kSystem) if there is no memory for the mirrors.
  AnnouncementForwarder(Group& group, links::Engine& links);
  ~AnnouncementForwarder();
  AnnouncementForwarder(const AnnouncementForwarder&) = delete;
  AnnouncementForwarder& operator=(const AnnouncementForwarder&) = delete;

  // Sends the announcements of this host once all are there, and takes in what has come. Never
  // waits; any thread.
  void step() { step(false); }
  // Whether this host's announcements up to that one have been sent.
  bool has_sent(std::uint64_t sequence);
  // Whether there is nothing to do before those ranks have announced, all of them of this host.
  bool awaits_only(const std::vector<int>& ranks);
  // As step; also sends those that were there the last time, even if others are not.
  void hurry() { step(true); }

 private:
  static constexpr int kBundles = 4;
  // Bundles of a leader that are received ahead, for gloo sends nothing before the receiver has
  // reported that there is room.
  static constexpr int kAhead = 2;

  // A message to all other leaders.
  struct Bundle {
    std::unique_ptr<std::byte[]> bytes;
    std::unique_ptr<links::Request[]> requests;  // by other host
  };
  // What comes from another leader.
  struct Incoming {
    struct Place {
      std::unique_ptr<std::byte[]> bytes;
      links::Request request;
    };
    Incoming(int leader, std::size_t room) : leader(leader), room(room) {}

    int leader;
    std::size_t room;
    std::uint64_t number = 0;  // of the next to come
    Place places[kAhead];      // in turn
  };

  // If the other constructor throws, the destructor cancels what it has posted.
  struct Empty {};
  AnnouncementForwarder(Group& group, links::Engine& links, Empty);
  void step(bool hurry);
  bool has_announced(std::size_t i);
  void forward(bool hurry);
  void send(const std::vector<std::size_t>& which);
  void receive();
  void post(Incoming& incoming, std::uint64_t number);
  void mirror(int leader, std::span<const std::byte> bundle);
  std::size_t most(std::size_t num_ranks) const;

  Group& group_;
  links::Engine& links_;
  std::mutex mutex_;
  std::vector<int> ranks_;                           // of this host
  std::vector<std::uint64_t> forwarded_;             // the last announcement of each
  std::vector<char> was_there_;                      // when it was last hurried
  std::uint64_t sent_ = 0;                           // bundles
  Bundle bundles_[kBundles];                         // in turn
  std::vector<std::unique_ptr<Incoming>> incoming_;  // by other host
};

}  // namespace ringcomm::hosts
