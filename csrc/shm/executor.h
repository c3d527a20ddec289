// Carries out programs over shared memory.
//
// The chunks of a collective are cut into slices; one round of the program moves slice b of every
// chunk. Rounds alternate between lanes (lane = round mod kLanes), each with an outbox and counters
// of its own, so that a rank that must wait in one lane works in the other.
//
// Within a lane everything is in order: a rank writes the slices it sends into its outbox, slot
// after slot, and tells each reader the slot; a reader takes them in that order. A slot is written
// again when all its readers have taken it. No reader is left more than kUnread slices behind: what
// has no elements in a round is skipped, so all slots may come to hold slices for one peer. What a
// rank receives it adds, keeps and sends on in one pass over the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "chunks.h"
#include "plan/program.h"
#include "reduce/host.h"
#include "shm/group.h"
#include "shm/idle.h"
#include "spans.h"

namespace ringcomm::shm {

class Executor {
 public:
  explicit Executor(Group& group);

  // Runs the program on chunks (program.num_chunks of them). For a collective that only moves data
  // reduction.op is ignored; avg's divisor is applied where an action finishes a sum, premul_sum's
  // factor wherever the own input is used. All ranks run the same collective, begun by an Exchange.
  void run(const Program& program, std::span<const Chunk> chunks, const Reduction& reduction,
           const Call& call, const Deadline& deadline);

 private:
  struct Reader {
    int peer;
    std::uint64_t position;
  };
  struct Slot {
    std::vector<Reader> readers;
  };
  struct Lane {
    std::vector<std::uint64_t> sent;   // slices published for each peer, ever
    std::vector<std::uint64_t> taken;  // slices taken from each peer, ever
    std::vector<Slot> slots;
    std::size_t next_slot = 0;
    std::size_t round = 0;
    std::size_t action = 0;
  };
  struct Job {
    const Program& program;
    std::span<const Chunk> chunks;
    const Reduction& reduction;
    std::size_t element_nbytes;
    std::size_t slice_count;  // elements in a slot
    std::size_t num_rounds;
    SpanSink* spans;
  };

  // Does the lane's next action, if its slices and a slot are there. False: it must wait.
  bool advance(const Job& job, int lane);
  void perform(const Job& job, int lane, const Action& action, std::size_t offset,
               std::size_t count, std::byte* slot);
  bool slice_ready(int lane, int peer);
  const std::byte* slice(const Job& job, int lane, int peer);
  bool slot_free(int lane, const Slot& slot);
  bool edge_free(int lane, int peer);
  std::vector<int> awaited(const Job& job);

  Group& group_;
  std::vector<Lane> lanes_;
  std::vector<const void*> inputs_;
};

}  // namespace ringcomm::shm
