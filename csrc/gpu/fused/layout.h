// The memory on a device through which the ranks of one host exchange data. Each rank has one such
// block, and all ranks can reach all blocks.
//
//   flags     [lanes][ranks]   how far each other rank has come in the lane; it writes that itself
//   calls     [lanes]          how many calls the lane has carried out, and how many eagerly
//   inboxes   [2][ranks]       what other ranks send eagerly (eager.h)
//   hops      [2][ranks]       the same for each hop of calls in two hops
//   outboxes  [lanes]          slots that the other ranks read
//   probes    [ranks]          what ranks write to prove that they reach the memory (probe.h)
//
// Flags lie in the memory of the rank that waits for them, so that a wait never crosses the link
// between devices. What one rank writes and another reads does not share a line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/host_device.h"

namespace ringcomm::fused {

inline constexpr int kMaxRanks = 16;
inline constexpr int kLanesPerBlock = 2;
inline constexpr int kMaxBlocks = 64;
inline constexpr int kMaxLanes = kMaxBlocks * kLanesPerBlock;
inline constexpr std::size_t kLine = 128;  // bytes

// Number of the call << kActionBits | number of actions that are done. Grows, and wraps.
using Progress = std::uint64_t;
inline constexpr int kActionBits = 32;

// 4 bytes of data in the lower half, the number of the call in the upper one.
using Word = std::uint64_t;
struct alignas(2 * sizeof(Word)) LLPacket {
  Word first, second;
};
inline constexpr int kInboxes = 2;
inline constexpr int kHops = 2;
// The bytes that a warp sends at once, one pack for each thread.
inline constexpr std::size_t kEagerUnit = 32 * 16;

// The part for each other rank, out of what a rank sends eagerly to all of them together.
inline std::size_t eager_nbytes_for_each(std::size_t nbytes, int world_size) {
  return nbytes / (world_size - 1) / kEagerUnit * kEagerUnit;
}

struct Layout {
  int world_size = 0;
  int num_lanes = 0;
  std::size_t outbox_nbytes = 0;  // of one lane; a multiple of kLine
  int eager_lanes = 0;            // no more than that
  std::size_t eager_nbytes = 0;   // the most that a rank sends to another; a multiple of kEagerUnit
  std::size_t eager_packs = 512;  // that are dealt to a lane at once
  std::size_t hop_nbytes = 0;     // as eager_nbytes, in each of two hops; 0: no call takes two hops

  RINGCOMM_HOST_DEVICE std::size_t flag_at(int lane, int from) const {
    return (static_cast<std::size_t>(lane) * world_size + from) * kLine;
  }
  RINGCOMM_HOST_DEVICE std::size_t calls_at(int lane) const {
    return flag_at(num_lanes, 0) + lane * kLine;
  }
  RINGCOMM_HOST_DEVICE std::size_t eager_calls_at(int lane) const {
    return calls_at(lane) + kLine / 2;
  }
  RINGCOMM_HOST_DEVICE std::size_t hop_calls_at(int lane) const {
    return eager_calls_at(lane) + sizeof(std::uint32_t);
  }
  RINGCOMM_HOST_DEVICE std::size_t inbox_at(int turn, int from) const {
    const std::size_t inbox_nbytes = 2 * eager_nbytes;  // half of each word is data
    return calls_at(num_lanes) +
           (static_cast<std::size_t>(turn) * world_size + from) * inbox_nbytes;
  }
  RINGCOMM_HOST_DEVICE std::size_t hop_inbox_at(int hop, int from) const {
    const std::size_t inbox_nbytes = 2 * hop_nbytes;
    return inbox_at(kInboxes, 0) +
           (static_cast<std::size_t>(hop) * world_size + from) * inbox_nbytes;
  }
  RINGCOMM_HOST_DEVICE std::size_t outbox_at(int lane) const {
    return hop_inbox_at(kHops, 0) + lane * outbox_nbytes;
  }
  // One line for each rank: see probe.h.
  std::size_t probe_at() const { return outbox_at(num_lanes); }
  // All before the outboxes is zero before the first call.
  std::size_t counters_nbytes() const { return outbox_at(0); }
  std::size_t nbytes() const { return probe_at() + world_size * kLine; }
};

}  // namespace ringcomm::fused
