// Makes the calls that ranks compare with each other (Call in status.h), and refuses those that
// cannot be right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "programs.h"
#include "reduce/host.h"
#include "status.h"

namespace ringcomm {

Call make_call(Collective collective, std::size_t count, DType dtype, Algorithm algorithm);

// Throws Error (kInvalidArgument) where the op is not defined for the dtype.
Call make_call(Collective collective, std::size_t count, const Reduce& reduce, Algorithm algorithm);

// Throws Error (kInvalidArgument) for a root outside of 0 ... world_size-1.
void set_root(Call& call, int root, int world_size);

// FNV-1a over the counts: equal on all ranks exactly if the counts are (to 64 bits of doubt).
template <typename Blocks>
std::uint64_t layout_of(const Blocks& blocks) {
  std::uint64_t digest = 14695981039346656037u;
  for (const auto& block : blocks) {
    for (int byte = 0; byte < 8; ++byte) {
      digest = (digest ^ (block.count >> (8 * byte) & 0xff)) * 1099511628211u;
    }
  }
  return digest;
}

template <typename Blocks>
std::size_t total_count(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0},
                         [](std::size_t sum, const auto& block) { return sum + block.count; });
}

}  // namespace ringcomm
