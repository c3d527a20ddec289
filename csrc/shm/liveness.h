// Which ranks of a group are there, as far as this rank can know.
//
// It looks at the processes of its own host's ranks, and at what they have written. About other
// ranks it knows what their leaders report (hosts/heartbeat.h), how long these have been silent,
// and which connections are lost.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/deadline.h"
#include "shm/segment.h"

namespace ringcomm::shm {

class Group;

class Liveness {
 public:
  explicit Liveness(Group& group) : group_(group) {}

  // As Group::gone (core/group.h).
  bool gone(int peer, std::string* how);
  // Whether anything has come from that host in the last seconds. Nothing if this host does not
  // listen: its heartbeat has ended with its leader.
  std::optional<bool> has_contact(int host);

  // The leader's heartbeat writes these.
  //
  // This rank's heartbeat has listened since then, or a status message has come from another host's
  // leader.
  void mark_alive(int leader, Clock::time_point when = Clock::now());
  // The connection to another host's leader is lost.
  void mark_dead(int leader);
  // So much of its silence does not count.
  void mark_suspended(int leader, Clock::duration silence);

 private:
  RankState& state(int rank);
  Clock::time_point heard_at(int leader);
  Clock::duration silent_for(int leader);
  using FirstSeen = std::map<int, Clock::time_point>;  // by rank
  Clock::time_point first_seen(FirstSeen& seen, int peer);
  bool gone_elsewhere(int peer, std::string* how);
  struct Loss {
    std::string why;  // empty: there is none
    Clock::time_point since;
  };
  Loss loss_of(int rank);
  std::string host_name_of(int peer);

  Group& group_;
  FirstSeen left_;  // ranks of other hosts
  FirstSeen lost_;  // links
  std::mutex seen_mutex_;
};

}  // namespace ringcomm::shm
