// The way without outboxes: what peers can reach stays where it is. That is what lies in memory
// that they can map (shm/arena.h), and in an all-to-all, whatever the kernel lets them read out of
// this process (shm/peer_memory.h), where that is faster (shm/copy_choice.h).
//
// With its announcement every rank publishes where its blocks lie. Once all have announced, each
// takes what it has been promised from where it lies:
//
//   what moves          the one it is promised to copies it out of its owner's tensor
//   a sum for one rank  that rank adds all inputs where they are
//   a sum for many      each of them adds one share, and writes it to the outputs of all:
//
//                          share 0      share 1      share 2
//       rank 0's tensor    rank 0 adds  rank 1 adds  rank 2 adds
//       rank 1's tensor    these three  these three  these three
//       rank 2's tensor    and writes   and writes   and writes
//                          all three    all three    all three
//
// Then it reports that, and waits until the ranks that read or write its own tensors have done so.
// That takes one pass over the data and two waits, where slices in outboxes take three passes and a
// wait for each slice.
//
// Invariant: between its announcement and its return a rank's tensors are touched by others, each
// byte that is written by one rank alone; before and after by itself alone.
//
// As with the eager way all follows from the collective's Contract. The ranks go this way if all
// publish a place, and all can reach what they must; a rank that does not know yet tries it when it
// gets the place, so that the next call can. Rank 0 decides whether places in processes are used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/call.h"
#include "core/chunks.h"
#include "core/deadline.h"
#include "plan/collective.h"
#include "reduce/host.h"
#include "reduce/types.h"
#include "shm/copy_choice.h"
#include "shm/exchange.h"
#include "shm/group.h"
#include "shm/peer_memory.h"

namespace ringcomm::shm {

// For one collective, number of blocks and root.
class ZeroCopy {
 public:
  ZeroCopy(Collective collective, int world_size, int num_blocks, int root, int rank);

  // The bytes that a rank announces at most.
  std::size_t most_nbytes() const;
  // Returns the bytes written; 0 if a part of this rank's lies elsewhere.
  std::size_t publish_buffers(const Chunks& blocks, std::size_t element_nbytes,
                              const PeerMemory& peers, std::byte* payload);
  // What that is.
  PayloadKind payload_kind() const {
    return inputs_.empty() ? PayloadKind::kReach : PayloadKind::kPlace;
  }
  // When all have announced: the places begin so many bytes behind the beginning of their payloads.
  struct Announced {
    Group& group;
    Exchange& exchange;
    PeerMemory& peers;
    std::size_t begin;
  };
  // Whether they go this way, which all find alike.
  bool is_open(const Announced& all);
  // Carries the call out, if it is open. Throws Error.
  void run(const Chunks& blocks, const Reduction& reduction, const Announced& all, const Call& call,
           const Deadline& deadline);
  // Whichever way it went, the call that was looked at last is done: later ones are chosen by how
  // long it took.
  void done();

 private:
  // Number `index` of the places that the rank publishes.
  struct Place {
    int rank;
    int index;
  };
  // What this rank does for a block: its share of a sum for many, or all of it.
  struct Task {
    int block;
    int share;
    int num_shares;
    std::vector<Place> inputs;   // by rank, the own among them
    std::vector<Place> outputs;  // of others
  };

  // They stand in the order in which a rank prefers them.
  enum class Places : std::uint8_t { kNone, kInArena, kInProcess };
  struct BufferInfo;

  static std::uint64_t place_of(const Place& place, const Announced& all);
  void learn(int rank, const BufferInfo& info, const Announced& all) const;
  bool may_be_read(const Chunks& blocks, std::size_t element_nbytes);
  std::size_t nbytes_to_take(const Chunks& blocks, std::size_t element_nbytes) const;

  void perform(const Task& task, const Chunks& blocks, const Reduction& reduction,
               const Announced& all, const Call& call, const Deadline& deadline);
  void take(const Place& from, std::byte* output, std::size_t nbytes, const Announced& all,
            const Call& call, const Deadline& deadline);
  void await_others(Group& group, const Call& call, const Deadline& deadline);

  const int rank_;
  const bool is_exchange_;               // its parts may be read out of processes
  std::vector<int> inputs_;              // this rank's; it publishes their places
  std::vector<int> outputs_;             // and then of these
  std::vector<std::uint64_t> readable_;  // where the kernel could read each of them last
  std::vector<std::size_t> num_inputs_;  // by rank
  std::size_t most_places_ = 0;
  std::vector<Task> tasks_;
  std::vector<int> reached_;            // the ranks whose tensors this one touches
  std::vector<int> awaited_;            // those that touch this one's
  std::array<CopyChoice, 64> choices_;  // rank 0's, by the bits of the bytes that it takes
  // The state of one call:
  std::vector<Places> places_;  // that each rank has published
  std::size_t taken_ = 0;       // bytes that this rank takes from others, perhaps out of processes
  CopyChoice* choice_ = nullptr;
  bool may_choose_ = false;  // it could go either way
  Clock::time_point began_;
  Chunks shares_;  // kept for their memory, as what follows
  std::vector<const void*> sources_;
  std::vector<Copy> copies_;
  std::vector<StoreChoice> stores_;  // by reader
};

}  // namespace ringcomm::shm
