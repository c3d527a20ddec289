// Where the chunks of a collective lie in a rank's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ringcomm {

constexpr std::size_t divide_up(std::size_t count, std::size_t by) { return (count + by - 1) / by; }
// To a multiple of `unit`.
constexpr std::size_t round_up(std::size_t count, std::size_t unit) {
  return divide_up(count, unit) * unit;
}

// All counts are elements.
struct Input {
  const void* data;
  std::size_t count;
};

struct Output {
  void* data;
  std::size_t count;
};

// A null pointer: the chunk is not an input, or not an output, on this rank.
struct Chunk {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
};

using Chunks = std::vector<Chunk>;

// Appends the n chunks of a block, as equal as whole cache lines allow; the last may be shorter.
inline void divide(const Chunk& block, std::size_t element_nbytes, int n, Chunks& chunks) {
  constexpr std::size_t kLineNbytes = 64;
  const std::size_t each = round_up(divide_up(block.count, n), kLineNbytes / element_nbytes);
  for (int c = 0; c < n; ++c) {
    const std::size_t begin = std::min(block.count, c * each);
    const std::size_t end = std::min(block.count, begin + each);
    const std::size_t at = begin * element_nbytes;
    chunks.push_back({block.input == nullptr ? nullptr : block.input + at,
                      block.output == nullptr ? nullptr : block.output + at, end - begin});
  }
}

}  // namespace ringcomm
