// The arguments of a fused kernel for one collective call of one rank, and the program
// (plan/program.h) as flat data that a device can go through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/call.h"
#include "core/chunks.h"
#include "gpu/fused/layout.h"
#include "plan/program.h"
#include "reduce/device_arguments.h"
#include "reduce/host_device.h"

namespace ringcomm::fused {

// A slice's other end: the rank that publishes it, or a rank that takes it.
struct Peer {
  std::int32_t rank;
  std::int32_t action;       // of that rank
  std::int32_t num_actions;  // of that rank
  std::int32_t slot;         // of that rank's outbox, if it publishes the slice
};

struct Step {
  std::int32_t chunk;
  std::int32_t first_peer;  // among the script's: sources, ascending by rank, and then readers
  std::int32_t num_sources;
  std::int32_t num_readers;
  std::int32_t first_concerned;  // the ranks of those peers, each once
  std::int32_t num_concerned;
  std::int32_t own_input;  // how many sources come before the own value; -1: it is not used
  std::int32_t slot, replaces;
  Location own, store;
  bool finish;
};

// Views of memory on the device, one behind the other.
struct Script {
  const Step* steps = nullptr;
  const Peer* peers = nullptr;
  const std::int32_t* concerned = nullptr;  // ranks, by step
  std::int32_t num_steps = 0;
  std::uint32_t nbytes = 0;  // all of them

  RINGCOMM_HOST_DEVICE const Peer& source(const Step& step, int i) const {
    return peers[step.first_peer + i];
  }
  RINGCOMM_HOST_DEVICE const Peer& reader(const Step& step, int i) const {
    return peers[step.first_peer + step.num_sources + i];
  }

  RINGCOMM_HOST_DEVICE const std::byte* text() const {
    return reinterpret_cast<const std::byte*>(steps);
  }
  // The same views of a copy.
  RINGCOMM_HOST_DEVICE Script at(const std::byte* copy) const {
    const auto there = [&](auto* what) {
      const std::byte* const it = reinterpret_cast<const std::byte*>(what);
      return reinterpret_cast<decltype(what)>(copy + (it - text()));
    };
    return {there(steps), there(peers), there(concerned), num_steps, nbytes};
  }
};

// The memory that a Script views, in one piece.
struct ScriptText {
  std::vector<Step> steps;
  std::vector<Peer> peers;
  std::vector<std::int32_t> concerned;

  ScriptText(const Program& program, int rank);

  std::size_t nbytes() const {
    return steps.size() * sizeof(Step) + peers.size() * sizeof(Peer) +
           concerned.size() * sizeof(std::int32_t);
  }
  // Writes nbytes() bytes to `memory`. Returns views of them as if they lay at `address`.
  Script write(std::byte* memory, const std::byte* address) const;
};

inline constexpr int kMaxChunks = 64;

// What a kernel and the host exchange, in the host's memory.
struct alignas(kLine) Control {
  std::uint32_t aborted;               // the host sets it, and every wait ends
  std::uint32_t waits_for[kMaxLanes];  // by lane: the rank it has long waited for, plus 1
  std::uint32_t findings[kMaxRanks];   // of gpu/fused/probe.h
};

struct Piece {
  const std::byte* input;
  std::byte* output;
  std::size_t count;
  // In slots, data begin this many bytes late, so that they can be loaded in packs together with
  // the own value. It is the same on all ranks.
  std::uint32_t skew;
};

// The packs of an eager message: at least one.
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
  bool premultiplies;                      // the own input, by reduction_arguments.factor
  ReductionArguments reduction_arguments;  // to those that finish a sum
  bool looks_ahead;  // for what a step needs, while the step before is under way
  bool gathers;      // eagerly
  bool two_hops;     // eagerly, an all-reduce; a piece for each rank
  int num_pieces;
  Piece pieces[kMaxChunks];

  // The rank that comes `distance` places after this one, around the group.
  RINGCOMM_HOST_DEVICE int at_distance(int distance) const {
    const int at = rank + distance;
    return at < layout.world_size ? at : at - layout.world_size;
  }

  RINGCOMM_HOST_DEVICE bool has_slice(int chunk, std::size_t round) const {
    return round * slice_count < pieces[chunk].count;
  }
};

// Why the fused kernel cannot carry out a program; empty: it can. It is the same on all ranks.
std::string why_not(const Program& program, const Layout& layout);

// Whether the call is eager: an all-reduce, reduce-scatter or all-gather of few bytes, unless its
// plan is a user's own. It is the same on all ranks.
bool is_eager(const Call& call, std::span<const Chunk> blocks, const Layout& layout);
// Whether the call takes two hops: an all-reduce that is a little too large to be eager. It is the
// same on all ranks.
bool takes_two_hops(const Call& call, std::span<const Chunk> blocks, const Layout& layout);
// The job of a call of either kind, without memory and control.
Job make_eager_job(const Call& call, std::span<const Chunk> blocks, const Reduction& reduction,
                   const Layout& layout, int rank);

// The job of a call; why_not() is empty for its program. The executor adds the addresses: script,
// memory, scratch and control. All ranks cut the chunks into the same slices.
Job make_job(const Call& call, const Program& program, std::span<const Chunk> chunks,
             const Reduction& reduction, const Layout& layout, int rank);

}  // namespace ringcomm::fused
