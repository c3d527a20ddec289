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

// The channels of collectives, and send and recv on devices.
//
// Each pair of ranks has two communicators, one for each direction, and each has a stream of its
// own: so two ranks may both send first, and a message waits for no other pair's. The two ranks
// make their communicators when one of them first has a message for the other. The other answers
// whatever it is doing (answer() is called all the time), so the order of first messages among
// several ranks does not matter. As with NCCL, messages have no tags: a receive takes the next
// message of its peer, which must be as long as it.
//
// The methods are called one at a time with `device` as the current one, except for those that any
// thread may call.
class Connections {
 public:
  Connections(Group& group, int device, Priority priority, Allocator allocator)
      : group_(group),
        board_(group.board()),
        device_(device),
        priority_(priority),
        allocator_(std::move(allocator)) {}

  void set_channels(std::unique_ptr<Comms> channels);
  // Null before they are made, and for one rank alone.
  Comms* channels() const { return channels_.get(); }

  // Whether messages can be exchanged with the peer. If not, begins to connect with it.
  bool ready(int peer);
  // Whether the peer has begun to connect with this rank.
  bool has_come(int peer) { return board_.unique_id_of(peer).has_value(); }
  // Makes progress with the peers that this rank connects with, and with those that have begun to
  // connect with it. Throws Error (kLibrary).
  void answer();
  bool all_connected() const;

  // The stream of a message with a peer that is ready. All messages of one pair and direction have
  // the same stream.
  cudaStream_t stream_of(const PeerMessage& message) const;
  // Enqueues messages on their streams, as one group: none of them waits for another.
  void enqueue(const std::vector<PeerMessage>& messages);

  // The ranks that share a communicator with this rank, or are about to, and the rank itself.
  std::vector<int> partners() const;

  // Any thread may call this. Throws Error (kLibrary) if NCCL has seen a communicator fail.
  void check();

  // Any thread may call this. Ends what the communicators do and makes a thread inside NCCL return;
  // is_back() is true once it has. Only Comms::abort may follow, or only Comms::leave if this
  // returns false.
  bool interrupt(const std::function<bool()>& is_back);

  // `how` of all communicators that are left: &Comms::abort, &Comms::leave, or &Comms::destroy,
  // which the partners must do, too.
  void end(void (Comms::*how)());

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
  void publish();

  Group& group_;
  DeviceBoard& board_;
  const int device_;
  const Priority priority_;
  const Allocator allocator_;
  std::map<int, Pair> pairs_;
  std::unique_ptr<Comms> channels_;  // null before they are made, and for one rank alone

  std::mutex mutex_;
  std::vector<ncclComm_t> in_use_;  // all of them, for other threads; guarded by mutex_
};

}  // namespace ringcomm::nccl
