// Where the chunks of a collective lie in a rank's memory.
#pragma once

#include <cstddef>
#include <span>
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

// Blocks are the chunks that a collective is made of whatever its plan, which may cut them further.
// Each function but divide() replaces what `blocks` holds. Pointers of what this rank has no part
// in are null.

// The whole buffer.
void one_block(const void* input, void* output, std::size_t count, Chunks& blocks);

// One block per rank, all of them inputs; the own one is the output.
void blocks_to_reduce_scatter(std::span<const Input> inputs, void* output, int rank,
                              Chunks& blocks);

// One block per rank, all of them outputs; the own one is the input.
void blocks_to_all_gather(const void* input, std::span<const Output> outputs, int rank,
                          Chunks& blocks);

// `count` elements per rank. outputs: one per rank on the root, else empty.
void blocks_to_gather(const void* input, std::span<void* const> outputs, std::size_t count,
                      int rank, int world_size, Chunks& blocks);

// `count` elements per rank. inputs: one per rank on the root, else empty.
void blocks_to_scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                       int rank, int world_size, Chunks& blocks);

// world_size * world_size blocks, of which block i * world_size + j is what rank i has for rank j.
void blocks_to_all_to_all(std::span<const Input> inputs, std::span<const Output> outputs, int rank,
                          Chunks& blocks);

// Appends the n chunks of a block, as equal as whole cache lines allow; the last may be shorter.
void divide(const Chunk& block, std::size_t element_nbytes, int n, Chunks& chunks);

}  // namespace ringcomm
