// Some ranks that know each other: which they are, whether the group still works, and what is known
// of a peer that is waited for. How they know it depends on the implementation; shm/group.h uses
// shared memory.
#pragma once

#include <string>
#include <utility>

#include "core/members.h"
#include "core/status.h"

namespace ringcomm {

class DeviceBoard;

class Group {
 public:
  Group(int rank, int world_size, Members members)
      : rank(rank), world_size(world_size), members(std::move(members)) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const int rank;
  const int world_size;
  Members members;  // its name may be given before another thread uses the group

  // Throws what broke the group, if anything has.
  virtual void check(const std::string& doing) = 0;
  virtual bool broken() = 0;

  // Breaks the group for all ranks: `text` says what happened, and every rank that waits or calls
  // later raises it. Data may be half moved by then, so a broken group stays broken, for the first
  // reason. Returns the error for this rank to throw, which contains that reason.
  virtual Error fail(ErrorKind kind, const std::string& text) = 0;

  // Whether the peer has left or its process has ended, and so will never do anything again.
  virtual bool gone(int peer, std::string* how) = 0;

  // What is known of a rank that is being waited for, for an error message: "rank 2 (its last
  // complete collective is #16), which waits for rank 3 (its process 4711 has ended (on host
  // node1))".
  virtual std::string describe_peer(int peer) = 0;

  // Whether the ranks are on several hosts.
  virtual bool spans_hosts() const = 0;

  // Where the ranks publish what they do with their devices.
  virtual DeviceBoard& board() = 0;
};

}  // namespace ringcomm
