// The collectives of a rank, on the host or on a device: each becomes a call that ranks can
// compare, blocks of memory, and a reduction, for a class that carries it out.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "core/call.h"
#include "core/chunks.h"
#include "core/group.h"
#include "core/policy.h"
#include "core/programs.h"
#include "reduce/types.h"

namespace ringcomm {

// All counts are elements. Inputs are only read; an output may be the rank's input. Every method is
// called by all ranks in the same order, by one thread at a time. They throw Error, see
// core/status.h, and PlanError for a user's plan that is wrong.
class Collectives {
 public:
  using Timeout = std::chrono::milliseconds;

  virtual ~Collectives() = default;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool is_reproducible() const { return programs_.selection().reproducible != Reproducible::kOff; }

  void all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                  Timeout timeout);
  // inputs[r] is this rank's contribution to what rank r gets.
  void reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce, Timeout timeout);
  // outputs[r] is what rank r gives; outputs[rank].count is the count of `input`.
  void all_gather(const void* input, std::span<const Output> outputs, ElementType type,
                  Timeout timeout);
  void broadcast(void* data, std::size_t count, ElementType type, int root, Timeout timeout);
  // output is used on the root only.
  void reduce(const void* input, void* output, std::size_t count, Reduce reduce, int root,
              Timeout timeout);
  // outputs on the root only, one per rank, `count` elements each.
  void gather(const void* input, std::span<void* const> outputs, std::size_t count,
              ElementType type, int root, Timeout timeout);
  // inputs on the root only, one per rank, `count` elements each.
  void scatter(std::span<const void* const> inputs, void* output, std::size_t count,
               ElementType type, int root, Timeout timeout);
  // inputs[r] goes to rank r, outputs[r] comes from it; they must not overlap.
  void all_to_all(std::span<const Input> inputs, std::span<const Output> outputs, ElementType type,
                  Timeout timeout);

 protected:
  Collectives(int rank, int world_size, Selection selection);
  // What the ranks have agreed on, once they have met. On several hosts plans are for these hosts.
  void agree_on(GroupFacts facts);

  const Policy& policy() const { return policy_; }
  // For carry_out: the plan of the call; its blocks, one for the whole buffer or one for each rank,
  // or for an all-to-all each pair; and these cut into as many chunks as the plan has. They stay
  // until the next call.
  const Prepared& prepared(const Call& call) { return programs_.find(call); }
  Chunks& blocks() { return blocks_; }
  std::span<const Chunk> chunks(const Call& call, int num_chunks);

 private:
  // Comes before a call's plan is chosen, which may depend on what it finds out.
  virtual void prepare_choice(Timeout /*timeout*/) {}
  // What carries calls out. It is the same on all ranks.
  virtual ExecutorKind executor_kind() const = 0;
  // `call` has no sequence number yet, and no Call::plan.
  virtual void carry_out(Call call, const Reduction& reduction, Timeout timeout) = 0;

  // Blocks are the chunks that a collective is made of whatever its plan, which may cut them
  // further. block_of(r) is the block of rank r.
  template <typename BlockOf>
  void set_blocks_by_rank(BlockOf block_of);
  void run(Call call, const Reduction& reduction, Timeout timeout);

  const int rank_;
  const int world_size_;
  Programs programs_;
  Policy policy_;
  Chunks blocks_, chunks_;
};

}  // namespace ringcomm
