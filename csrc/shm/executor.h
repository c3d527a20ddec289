// Carries out programs over shared memory.
//
// The chunks of a collective are cut into slices, each as large as its outbox has room for, or less
// where ranks would wait for each other. Rounds alternate between lanes (core/lanes.h), each with
// an outbox and a counter of its own, so that a rank that must wait in one lane works in the other.
// A program says in which slot of which outbox a slice lies. plan/wiring.h proves that this comes
// to an end. A rank adds what it receives, keeps it and sends it on in one pass over the data.
//
// The slots are at another place of the outboxes in each call, the same for all ranks
// (shm/layout.h), but in calls so large that they go through all of them anyway.
//
// What goes to ranks on other hosts, and what comes from there, lies in places of this rank's own:
// hosts/remote_slices.h.
//
// Invariant: a rank's counter says n only when the slices that its first n actions publish can be
// read, and those that they take are not read any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/call.h"
#include "core/chunks.h"
#include "core/spans.h"
#include "plan/program.h"
#include "reduce/host.h"
#include "reduce/publish.h"
#include "reduce/types.h"
#include "shm/backoff.h"
#include "shm/group.h"
#include "shm/layout.h"

namespace ringcomm::shm {

class Executor {
 public:
  explicit Executor(Group& group);

  // Throws Error (kInvalidArgument) for a program whose slots are too many for an outbox. All ranks
  // would throw.
  void check_fits(const Program& program) const;

  // Runs the program on chunks (program.num_chunks of them). For a collective that only moves data
  // reduction.op is ignored; avg's divisor is applied where an action finishes a sum, premul_sum's
  // factor wherever the own input is used. All ranks run the same collective, begun by an Exchange.
  void run(const Program& program, std::span<const Chunk> chunks, const Reduction& reduction,
           const Call& call, const Deadline& deadline);

 private:
  struct Lane {
    std::size_t round = 0;
    std::size_t action = 0;
    std::uint64_t done = 0;           // as in Progress
    std::vector<std::uint64_t> seen;  // of each peer's progress
    std::byte* scratch = nullptr;
    RingAllocator rotation;
    std::size_t slots_at = 0;  // where in the outboxes this call's slots are
  };
  struct Job {
    const Program& program;
    std::span<const Chunk> chunks;
    const Reduction& reduction;
    std::size_t element_nbytes;
    std::size_t slice_count;  // elements, as many as a slot is used for
    std::size_t stride;       // bytes, from slot to slot
    std::size_t num_rounds;
    std::uint64_t began;  // Progress of a rank that has done nothing yet
    SpanSink* spans;
    int num_lanes;
    Pass pass = Pass::kStraight;

    // One round in each lane, so that its slots go through only a part of the outboxes.
    bool is_short() const { return num_rounds <= static_cast<std::size_t>(num_lanes); }
    std::size_t slot_nbytes() const { return slice_count * element_nbytes; }
    bool has_slice(int chunk, std::size_t round) const {
      return round * slice_count < chunks[chunk].count;
    }
  };

  // Does the lane's next action, if all that it waits for is done. False: it must wait.
  bool advance(const Job& job, int lane);
  void perform(const Job& job, int lane, const Action& action);
  // For the ranks that read here what the action writes; null if none does.
  StoreChoice* stores_for_readers(const Action& action);
  std::byte* at(const Job& job, int lane, int chunk, const Location& location);
  std::byte* slot(const Job& job, int lane, int rank, int slot);

  // visit(peer, progress) for what the lane's next action waits for, as long as it returns true.
  template <typename Visit>
  bool each_awaited(const Job& job, int lane, Visit&& visit);
  bool has_reached(int lane, int peer, std::uint64_t progress);
  std::vector<int> awaited(const Job& job);
  void leave_nothing_behind(const Call& call, const Deadline& deadline);

  std::size_t slot_nbytes(const Program& program) const;
  void provide_scratch(std::size_t nbytes);
  Pass pass_for(const Job& job, const Call& call) const;

  Group& group_;
  const int num_lanes_;
  std::vector<Lane> lanes_;
  std::vector<StoreChoice> stores_;       // by reader, the last one of several
  std::unique_ptr<RemoteSlices> remote_;  // none if there is but one host
  std::vector<std::size_t> chunk_nbytes_;
  std::vector<const void*> inputs_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_nbytes_ = 0;
};

}  // namespace ringcomm::shm
