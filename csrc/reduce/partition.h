// How the threads of a grid share `count` elements. Plain integer arithmetic, the same on host and
// device.
//
//   | head |       body: packs of 16 bytes      | tail |
//   | one  | one | one | one |  ...  | one | one | one  |   at a time
//
// When all pointers have the same misalignment, the head brings them to a 16-byte boundary
// together. Thread t of T takes packs t, t + T, t + 2T, ... and, of head and tail counted together,
// elements t, t + T, ..., so that neighbours load neighbouring packs and every block has work
// however short the body is. When the pointers cannot be aligned together, there is no body and the
// head is everything.
// Invariant: each element belongs to exactly one thread and one of the three parts.
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
RINGCOMM_HOST_DEVICE Partition make_partition(std::uintptr_t address, bool together,
                                              std::size_t element_bytes, std::size_t count) {
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

  RINGCOMM_HOST_DEVICE Stride over(std::size_t end) const {
    return {block * num_threads + thread, end, num_blocks * num_threads};
  }
};

RINGCOMM_HOST_DEVICE Stride body_packs(const Partition& p, const Worker& w) {
  return w.over(p.num_packs);
}

// Positions among the elements of head and tail, counted together.
RINGCOMM_HOST_DEVICE Stride single_elements(const Partition& p, const Worker& w) {
  return w.over(p.head + (p.count - p.body_end));
}

RINGCOMM_HOST_DEVICE std::size_t single_element(const Partition& p, std::size_t position) {
  return position < p.head ? position : p.body_end + (position - p.head);
}

}  // namespace ringcomm
