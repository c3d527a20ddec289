// What a group needs of its ranks on other hosts, as one interface: announcements, slices, mail
// and liveness. csrc/hosts/ implements it; a group on one host has none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/program.h"

namespace ringcomm::shm {

class Group;

// The slices that an executor sends to ranks on other hosts, and gets from them.
class RemoteSlices {
 public:
  virtual ~RemoteSlices() = default;

  // A slice of at most so many bytes goes out before its receiver has asked for it.
  virtual std::size_t one_shot_nbytes() const = 0;

  // Begins one run of a program; `program` stays until the next.
  virtual void begin(const Program& program, std::span<const std::size_t> chunk_nbytes,
                     std::size_t slot_nbytes) = 0;

  // Whether what the lane's next action takes from other hosts is here, and all has left that was
  // sent from the send buffer it writes to.
  virtual bool is_ready(int lane, const Action& action) const = 0;
  // From the i-th source of the action, which is on another host.
  virtual const std::byte* slice(int lane, const Action& action, std::size_t i) const = 0;
  // The action is done.
  virtual void take(int lane, const Action& action) = 0;

  // Room for a slice to send; `nbytes` of them are sent next.
  virtual std::byte* send_buffer(int lane) = 0;
  // To those readers of the action that are on other hosts; there must be some.
  virtual void send(int lane, std::size_t round, const Action& action, std::size_t nbytes) = 0;

  // visit(peer) for those on other hosts that it waits for.
  virtual void each_awaited(int lane, const Action& action,
                            const std::function<void(int)>& visit) const = 0;

  virtual bool goes_to_others(const Action& action) const = 0;
};

// Keeps this rank's mail boxes for and from ranks of other hosts like theirs.
class RemoteMailbox {
 public:
  virtual ~RemoteMailbox() = default;

  // Before this rank sends the peer anything, or receives from it. Makes both mail boxes. Throws
  // Error (kSystem).
  virtual void open(int peer) = 0;
  // Moves what can be moved. True: something has come.
  virtual bool step() = 0;
  // Whether all that was written has been sent.
  virtual bool is_empty() const = 0;
};

// Any thread may call any method. Only sleep() and leave() block.
class RemoteHosts {
 public:
  virtual ~RemoteHosts() = default;

  // The links. See links::Engine (hosts/engine.h), whose methods these are.
  virtual bool advance() = 0;
  virtual void progress() = 0;
  virtual bool flushed() = 0;
  virtual void sleep(std::chrono::microseconds longest) = 0;
  virtual std::string failure(int peer) = 0;

  // Announcements. The leader of a host forwards them; on other ranks these do nothing.
  //
  // Sends those of this host once all are there, and takes in what has come.
  virtual void forward_announcements() = 0;
  // Whether this host's announcements up to that one have been sent.
  virtual bool has_forwarded(std::uint64_t sequence) = 0;
  // Whether there is nothing to forward before those ranks have announced, all of them of this
  // host.
  virtual bool forwards_after(const std::vector<int>& ranks) = 0;

  virtual std::unique_ptr<RemoteSlices> make_slices(int num_lanes) = 0;
  virtual std::unique_ptr<RemoteMailbox> make_mailbox() = 0;

  // Liveness. This rank sends its last status message, and reports nothing more to other hosts.
  virtual void leave() = 0;
};

// Makes it, while the group is being made. Throws Error.
using ConnectHosts = std::function<std::unique_ptr<RemoteHosts>(Group& group)>;

}  // namespace ringcomm::shm
