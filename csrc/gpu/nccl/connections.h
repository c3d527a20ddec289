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
#include "core/peer_message.h"
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
  Messages(Group& group, int device, Reclaim reclaim)
      : group_(group), board_(group.board()), device_(device), reclaim_(std::move(reclaim)) {}

  // Whether the peer can be sent to. Begins to meet it if not.
  bool ready(int peer);
  // Whether the peer has anything to say to this rank yet.
  bool has_come(int peer) { return board_.unique_id_of(peer).has_value(); }
  // Goes on meeting peers that this rank wants to meet, or that want to meet it. True: there are
  // communicators that were not there before. Throws Error (kLibrary).
  bool answer();

  // Of a message with a peer that is ready. Those of one pair and direction have the same.
  cudaStream_t stream_of(const PeerMessage& message) const;
  // Enqueues messages on their streams, as one group: none of them waits for another.
  void enqueue(const std::vector<PeerMessage>& messages);

  std::vector<ncclComm_t> comms() const;
  // Those that have met this rank, or are about to.
  std::vector<int> peers() const;
  bool all_met() const;
  void abort();
  void destroy();
  // Forgets all, and frees nothing.
  void leave();

 private:
  // Up leads from the lower rank to the higher one.
  enum Direction { kUp, kDown };
  struct Pair {
    Stream streams[2];                           // by direction, as all that follows
    std::unique_ptr<Comms> comms;                // once they have met
    std::unique_ptr<CommunicatorSetup> meeting;  // until then
  };

  void begin_to_meet(int peer);
  const Pair* find(int peer) const;
  Direction direction_of(const PeerMessage& message) const;

  Group& group_;
  DeviceBoard& board_;
  const int device_;
  const Reclaim reclaim_;
  std::map<int, Pair> pairs_;
};

// Its methods are called one at a time, with the device as the current one, but for those that say
// "any thread".
class Connections {
 public:
  Connections(Group& group, int device, Reclaim reclaim)
      : group_(group), device_(device), messages_(group, device, std::move(reclaim)) {}

  Messages& messages() { return messages_; }
  void set_channels(std::unique_ptr<Comms> channels);
  // Null before they are made, and for one rank alone.
  Comms* channels() const { return channels_.get(); }

  // Goes on meeting peers for their first messages.
  void answer();
  bool all_met() const { return messages_.all_met(); }

  // Those that share a communicator with this rank, and the rank itself.
  std::vector<int> partners() const;

  // Any thread. Throws Error (kLibrary) if NCCL has seen one of them fail.
  void check();

  // Any thread. Ends what they are doing and makes a thread that is inside NCCL come back, which
  // is_back() tells. Nothing but abort() may follow; if it returns false, nothing but leave().
  bool interrupt(const std::function<bool()>& is_back);

  // Frees all that are left, whatever the other ranks do. See Comms::abort.
  void abort();
  // Frees them; the partners do, too.
  void destroy();
  // Forgets them, and frees nothing.
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
