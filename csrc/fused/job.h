// What a launch of the fused kernel is told: one call of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/call.h"
#include "core/chunks.h"
#include "fused/layout.h"
#include "fused/script.h"
#include "reduce/device_arguments.h"

namespace ringcomm::fused {

inline constexpr int kMaxChunks = 64;

// Between a kernel and the host, in the host's memory.
struct alignas(kLine) Control {
  std::uint32_t aborted;               // the host's word: every wait ends
  std::uint32_t waits_for[kMaxLanes];  // the lanes': the rank each has long waited for, plus 1
  std::uint32_t findings[kMaxRanks];   // of fused/probe.h
};

struct Piece {
  const std::byte* input;
  std::byte* output;
  std::size_t count;
  // In slots, data begin so many bytes late that they can be loaded in packs together with the own
  // value. The same on all ranks.
  std::uint32_t skew;
};

// Of an eager message: at least one.
RINGCOMM_HOST_DEVICE std::size_t num_packs(std::size_t nbytes) {
  return nbytes == 0 ? 1 : (nbytes + kPackBytes - 1) / kPackBytes;
}

struct Job {
  Script script;
  Layout layout;
  std::byte* memory[kMaxRanks];  // of all ranks, laid out so, as this rank sees it
  std::byte* scratch;            // of all lanes
  std::size_t scratch_nbytes;    // of one
  Control* control;

  int rank;
  int num_lanes;  // that take part; lane = round mod their number
  std::size_t num_rounds;
  std::size_t slot_nbytes;
  std::size_t slice_count;  // elements of a slice; whole packs
  std::size_t element_nbytes;
  std::size_t unit_nbytes;                 // of what the kernel calculates with
  bool premultiplies;                      // the own input, by told.factor
  ReductionArguments reduction_arguments;  // to those that finish a sum
  bool looks_ahead;  // for what a step needs, while the step before is under way
  bool gathers;      // eagerly
  bool two_hops;     // eagerly, an all-reduce; a piece for each rank
  int num_pieces;
  Piece pieces[kMaxChunks];

  // The rank so many places behind this one, around the group.
  RINGCOMM_HOST_DEVICE int at_distance(int distance) const {
    const int at = rank + distance;
    return at < layout.world_size ? at : at - layout.world_size;
  }

  RINGCOMM_HOST_DEVICE bool has_slice(int chunk, std::size_t round) const {
    return round * slice_count < pieces[chunk].count;
  }
};

// Why a program cannot be carried out by the fused kernel, the same on all ranks; empty: it can.
std::string why_not(const Program& program, const Layout& layout);

// Whether the call goes eagerly: an all-reduce, reduce-scatter or all-gather of few bytes, unless
// its plan is a user's own. The same on all ranks.
bool is_eager(const Call& call, std::span<const Chunk> blocks, const Layout& layout);
// Whether it goes in two hops: an all-reduce that is too large to be eager, and not by much. The
// same on all ranks.
bool takes_two_hops(const Call& call, std::span<const Chunk> blocks, const Layout& layout);
// A call of either kind, but for memory and control.
Job make_eager_job(const Call& call, std::span<const Chunk> blocks, const Reduction& reduction,
                   const Layout& layout, int rank);

// Where why_not() says nothing: the call but for addresses, which are the executor's: script,
// memory, scratch, control. All ranks cut the chunks into the same slices.
Job make_job(const Call& call, const Program& program, std::span<const Chunk> chunks,
             const Reduction& reduction, const Layout& layout, int rank);

}  // namespace ringcomm::fused
