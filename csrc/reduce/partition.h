// How the threads of a grid share `count` elements. Plain integer arithmetic, the same on host and
// device.
//
//   | head |            body: packs of 16 bytes           | tail |
//   | one  | tile 0  | tile 1  | ... | tile t-1 | leftover | one  |
//
// When all pointers have the same misalignment, the head brings them to a 16-byte boundary
// together. A tile is kUnroll packs for each thread of a block; thread t of the block takes packs
// t, t + threads, t + 2 threads, ..., so that every load is coalesced and all of a thread's loads
// are in flight at once. Blocks stride over the tiles; all threads of the grid stride, pack by
// pack, over the leftover, and element by element over head and tail. When the pointers cannot be
// aligned together, there is no body and the head is everything.
// Invariant: each element belongs to exactly one thread and one of the four parts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/host_device.h"

namespace ringcomm {

inline constexpr std::size_t kPackBytes = 16;

struct Partition {
  std::size_t head;       // elements before the body
  std::size_t num_packs;  // packs in the body
  std::size_t body_end;   // first element of the tail
  std::size_t count;
};

// `address` is any of the pointers and `together` says whether all have its misalignment.
inline Partition make_partition(std::uintptr_t address, bool together, std::size_t element_bytes,
                                std::size_t count) {
  const std::size_t past = address % kPackBytes;
  const std::size_t head = past == 0 ? 0 : (kPackBytes - past) / element_bytes;
  if (!together || past % element_bytes != 0 || head >= count) return {count, 0, count, count};
  const std::size_t per_pack = kPackBytes / element_bytes;
  const std::size_t num_packs = (count - head) / per_pack;
  return {head, num_packs, head + num_packs * per_pack, count};
}

// for (i = begin; i < end; i += stride)
struct Stride {
  std::size_t begin, end, stride;
};

// One thread's place in the grid.
struct Worker {
  std::size_t block, num_blocks, thread, num_threads;

  RINGCOMM_HOST_DEVICE Stride over(std::size_t begin, std::size_t end) const {
    return {begin + block * num_threads + thread, end, num_blocks * num_threads};
  }
};

RINGCOMM_HOST_DEVICE std::size_t num_tiles(const Partition& p, const Worker& w, int unroll) {
  return p.num_packs / (w.num_threads * unroll);
}

RINGCOMM_HOST_DEVICE Stride tiles(const Partition& p, const Worker& w, int unroll) {
  return {w.block, num_tiles(p, w, unroll), w.num_blocks};
}

// The first of a thread's packs in a tile; the others follow at distances of num_threads.
RINGCOMM_HOST_DEVICE std::size_t first_pack(std::size_t tile, const Worker& w, int unroll) {
  return tile * w.num_threads * unroll + w.thread;
}

RINGCOMM_HOST_DEVICE Stride leftover_packs(const Partition& p, const Worker& w, int unroll) {
  return w.over(num_tiles(p, w, unroll) * w.num_threads * unroll, p.num_packs);
}

// Positions among the elements of head and tail, counted together.
RINGCOMM_HOST_DEVICE Stride single_elements(const Partition& p, const Worker& w) {
  return w.over(0, p.head + (p.count - p.body_end));
}

RINGCOMM_HOST_DEVICE std::size_t single_element(const Partition& p, std::size_t position) {
  return position < p.head ? position : p.body_end + (position - p.head);
}

}  // namespace ringcomm
