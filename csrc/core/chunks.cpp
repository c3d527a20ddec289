#include "core/chunks.h"

#include <algorithm>

namespace ringcomm {
namespace {

constexpr std::size_t kLineNbytes = 64;

Chunk chunk_of(const void* input, void* output, std::size_t count) {
  return {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count};
}

}  // namespace

void divide(const Chunk& block, std::size_t element_nbytes, int n, Chunks& chunks) {
  const std::size_t line = kLineNbytes / element_nbytes;
  const std::size_t each = round_up(divide_up(block.count, n), line);
  for (int c = 0; c < n; ++c) {
    const std::size_t begin = std::min(block.count, c * each);
    const std::size_t end = std::min(block.count, begin + each);
    const std::size_t at = begin * element_nbytes;
    chunks.push_back({block.input == nullptr ? nullptr : block.input + at,
                      block.output == nullptr ? nullptr : block.output + at, end - begin});
  }
}

void one_block(const void* input, void* output, std::size_t count, Chunks& blocks) {
  blocks.assign(1, chunk_of(input, output, count));
}

void blocks_to_reduce_scatter(std::span<const Input> inputs, void* output, int rank,
                              Chunks& blocks) {
  blocks.clear();
  for (const Input& input : inputs) {
    const bool own = blocks.size() == static_cast<std::size_t>(rank);
    blocks.push_back(chunk_of(input.data, own ? output : nullptr, input.count));
  }
}

void blocks_to_all_gather(const void* input, std::span<const Output> outputs, int rank,
                          Chunks& blocks) {
  blocks.clear();
  for (const Output& output : outputs) {
    const bool own = blocks.size() == static_cast<std::size_t>(rank);
    blocks.push_back(chunk_of(own ? input : nullptr, output.data, output.count));
  }
}

void blocks_to_gather(const void* input, std::span<void* const> outputs, std::size_t count,
                      int rank, int world_size, Chunks& blocks) {
  blocks.clear();
  for (int r = 0; r < world_size; ++r) {
    blocks.push_back(
        chunk_of(r == rank ? input : nullptr, outputs.empty() ? nullptr : outputs[r], count));
  }
}

void blocks_to_scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                       int rank, int world_size, Chunks& blocks) {
  blocks.clear();
  for (int r = 0; r < world_size; ++r) {
    blocks.push_back(
        chunk_of(inputs.empty() ? nullptr : inputs[r], r == rank ? output : nullptr, count));
  }
}

void blocks_to_all_to_all(std::span<const Input> inputs, std::span<const Output> outputs, int rank,
                          Chunks& blocks) {
  const std::size_t n = inputs.size();
  blocks.assign(n * n, Chunk{});
  for (std::size_t r = 0; r < n; ++r) {
    blocks[rank * n + r] = chunk_of(inputs[r].data, nullptr, inputs[r].count);
  }
  for (std::size_t r = 0; r < n; ++r) {
    blocks[r * n + rank].output = static_cast<std::byte*>(outputs[r].data);
    blocks[r * n + rank].count = outputs[r].count;
  }
}

}  // namespace ringcomm
