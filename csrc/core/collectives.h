// The collectives of a rank, on the host or on a device: each becomes a call that ranks can
// compare, blocks of memory, and a reduction, for a class that carries it out.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "core/call.h"
#include "core/chunks.h"
#include "core/group.h"
#include "core/policy.h"
#include "core/programs.h"
#include "reduce/reduction.h"

namespace ringcomm {

// A family of algorithms, of which each collective has one or another.
enum class AlgorithmFamily {
  kRing,
  kDirect,   // every rank sends directly to the receiver
  kOneShot,  // an all-reduce: every rank sends all its data to every other rank
  kTree,
  kDoubling,  // an all-reduce: what ranks have of the sum doubles with each step
};
inline constexpr int kNumFamilies = 5;

// All counts are elements. Inputs are only read; an output may be the rank's input. Every method is
// called by all ranks in the same order, by one thread at a time. They throw Error, see
// core/status.h, and PlanError for a user's plan that is wrong.
class Collectives {
 public:
  using Timeout = std::chrono::milliseconds;

  virtual ~Collectives() = default;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

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
  using AlgorithmFamily = ringcomm::AlgorithmFamily;

  Collectives(int rank, int world_size, Selection selection);
  // The ranks are on several hosts: a call without a selected algorithm uses two levels where it
  // can, and an all-reduce those that suit the network.
  void place(const Placement& placement, const Link& link);
  // The ranks share one host: a call without a selected algorithm uses what was measured there, if
  // anything was.
  void tune(std::span<const TunedRule> rules) { tuning_ = Tuning(rules); }

  // Whether the user has, for these calls.
  bool is_selected(Collective collective) const {
    return programs_.selected(collective) != nullptr;
  }
  // The algorithm of a call that has none yet, and what it is called.
  AlgorithmId choose(const Call& call) const;
  std::string algorithm_name(Collective collective, AlgorithmId algorithm) const {
    return programs_.name_of(collective, algorithm);
  }
  // For carry_out: the plan of the call; its blocks, one for the whole buffer or one for each rank,
  // or for an all-to-all each pair; and these cut into as many chunks as the plan has. They stay
  // until the next call.
  const Prepared& prepared(const Call& call) {
    return programs_.find(call.collective, call.algorithm, call.root);
  }
  Chunks& blocks() { return blocks_; }
  std::span<const Chunk> chunks(const Call& call, int num_chunks);

 private:
  // Comes before a call's plan is chosen, which may depend on what it finds out.
  virtual void prepare_choice(Timeout /*timeout*/) {}
  // Where nothing has been selected.
  virtual AlgorithmFamily family_of(Collective collective, std::size_t count,
                                    DType dtype) const = 0;
  // `call` has no sequence number yet, and no Call::plan.
  virtual void carry_out(Call call, const Reduction& reduction, Timeout timeout) = 0;

  void reduce_by(Call call, const Reduce& reduce, Timeout timeout);
  void move_by(Call call, Timeout timeout);

  const int rank_;
  const int world_size_;
  Programs programs_;
  std::array<std::array<AlgorithmId, kNumFamilies>, kNumCollectives> automatic_{};
  Tuning tuning_;
  // Across hosts, of an all-reduce of at most so many bytes.
  AlgorithmId doubling_ = 0;
  double doubling_most_ = 0;
  Chunks blocks_, chunks_;
};

}  // namespace ringcomm
