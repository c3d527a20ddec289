// All of NCCL's communicators that a rank holds: one for each channel, and those of the pairs that
// exchange messages.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device_board.h"
#include "core/group.h"
#include "gpu/nccl/comms.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

// "send(nbytes=64, peer=1)"
std::string describe(const PeerMessage& message);

// send and recv on devices.
//
// Each pair of ranks has two communicators, one for each direction, and each has a stream of its
// own: so two ranks may both send first, and a message waits for no other pair's. The two ranks
// make their communicators when one of them first has a message for the other. The other answers
// whatever it is doing (answer() is called all the time), so the order of first messages among
// several ranks does not matter. As with NCCL, messages have no tags: a receive takes the next
// message of its peer, which must be as long as it.
//
// The methods are called one at a time, with `device` as the current one.
class Messages {
 public:
  Messages(Group& group, int device, Priority priority, Allocator allocator)
      : group_(group),
        board_(group.board()),
        device_(device),
        priority_(priority),
        allocator_(std::move(allocator)) {}

  // Whether messages can be exchanged with the peer. If not, begins to connect with it.
  bool ready(int peer);
  // Whether the peer has begun to connect with this rank.
  bool has_come(int peer) { return board_.unique_id_of(peer).has_value(); }
  // Makes progress with the peers that this rank connects with, and with those that have begun to
  // connect with it. True: there are new communicators. Throws Error (kLibrary).
  bool answer();

  // The stream of a message with a peer that is ready. All messages of one pair and direction have
  // the same stream.
  cudaStream_t stream_of(const PeerMessage& message) const;
  // Enqueues messages on their streams, as one group: none of them waits for another.
  void enqueue(const std::vector<PeerMessage>& messages);

  std::vector<ncclComm_t> comms() const;
  // The ranks that are connected with this one, or about to be.
  std::vector<int> peers() const;
  bool all_connected() const;
  void abort();
  void destroy();
  // Forgets all communicators, and frees nothing.
  void leave();

 private:
  // Up is from the lower rank to the higher one.
  enum Direction { kUp, kDown };
  struct Pair {
    explicit Pair(Priority priority) : streams{Stream(priority), Stream(priority)} {}

    Stream streams[2];                         // by direction, as are the communicators
    std::unique_ptr<Comms> comms;              // once they are connected
    std::unique_ptr<CommunicatorSetup> setup;  // until then
  };

  void begin_setup(int peer);
  const Pair* find(int peer) const;
  Direction direction_of(const PeerMessage& message) const;

  Group& group_;
  DeviceBoard& board_;
  const int device_;
  const Priority priority_;
  const Allocator allocator_;
  std::map<int, Pair> pairs_;
};

// Its methods are called one at a time with the device as the current one, except for those that
// any thread may call.
class Connections {
 public:
  Connections(Group& group, int device, Priority priority, Allocator allocator)
      : group_(group), device_(device), messages_(group, device, priority, std::move(allocator)) {}

  Messages& messages() { return messages_; }
  void set_channels(std::unique_ptr<Comms> channels);
  // Null before they are made, and for one rank alone.
  Comms* channels() const { return channels_.get(); }

  // Makes progress with peers that connect for their first messages.
  void answer();
  bool all_connected() const { return messages_.all_connected(); }

  // The ranks that share a communicator with this rank, and the rank itself.
  std::vector<int> partners() const;

  // Any thread may call this. Throws Error (kLibrary) if NCCL has seen a communicator fail.
  void check();

  // Any thread may call this. Ends what the communicators do and makes a thread inside NCCL return;
  // is_back() is true once it has. Only abort() may follow, or only leave() if this returns false.
  bool interrupt(const std::function<bool()>& is_back);

  // Frees all communicators that are left, whatever the other ranks do. See Comms::abort.
  void abort();
  // Frees all communicators. The partners must do so, too.
  void destroy();
  // Forgets all communicators, and frees nothing.
  void leave();

 private:
  void publish();

  Group& group_;
  const int device_;
  Messages messages_;
  std::unique_ptr<Comms> channels_;  // null before they are made, and for one rank alone

  std::mutex mutex_;
  std::vector<ncclComm_t> in_use_;  // all of them, for other threads; guarded by mutex_
};

}  // namespace ringcomm::nccl
