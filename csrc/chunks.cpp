#include "chunks.h"

#include <algorithm>

namespace ringcomm {
namespace {

constexpr std::size_t kLineNbytes = 64;

Chunk chunk_of(const void* input, void* output, std::size_t count) {
  return {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count};
}

}  // namespace

void divide(const void* input, void* output, std::size_t count, std::size_t element_nbytes, int n,
            Chunks& chunks) {
  const std::size_t line = kLineNbytes / element_nbytes;
  const std::size_t each = ((count + n - 1) / n + line - 1) / line * line;
  chunks.clear();
  for (int c = 0; c < n; ++c) {
    const std::size_t begin = std::min(count, c * each);
    const std::size_t end = std::min(count, begin + each);
    const std::size_t at = begin * element_nbytes;
    chunks.push_back({static_cast<const std::byte*>(input) + at,
                      output == nullptr ? nullptr : static_cast<std::byte*>(output) + at,
                      end - begin});
  }
}

void chunks_to_reduce_scatter(std::span<const Input> inputs, void* output, int rank,
                              Chunks& chunks) {
  chunks.clear();
  for (const Input& input : inputs) {
    const bool own = chunks.size() == static_cast<std::size_t>(rank);
    chunks.push_back(chunk_of(input.data, own ? output : nullptr, input.count));
  }
}

void chunks_to_all_gather(const void* input, std::span<const Output> outputs, int rank,
                          Chunks& chunks) {
  chunks.clear();
  for (const Output& output : outputs) {
    const bool own = chunks.size() == static_cast<std::size_t>(rank);
    chunks.push_back(chunk_of(own ? input : nullptr, output.data, output.count));
  }
}

void chunks_to_gather(const void* input, std::span<void* const> outputs, std::size_t count,
                      int rank, int world_size, Chunks& chunks) {
  chunks.clear();
  for (int r = 0; r < world_size; ++r) {
    chunks.push_back(
        chunk_of(r == rank ? input : nullptr, outputs.empty() ? nullptr : outputs[r], count));
  }
}

void chunks_to_scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                       int rank, int world_size, Chunks& chunks) {
  chunks.clear();
  for (int r = 0; r < world_size; ++r) {
    chunks.push_back(
        chunk_of(inputs.empty() ? nullptr : inputs[r], r == rank ? output : nullptr, count));
  }
}

void chunks_to_all_to_all(std::span<const Input> inputs, std::span<const Output> outputs, int rank,
                          Chunks& chunks) {
  const std::size_t n = inputs.size();
  chunks.assign(n * n, Chunk{});
  for (std::size_t r = 0; r < n; ++r) {
    chunks[rank * n + r] = chunk_of(inputs[r].data, nullptr, inputs[r].count);
  }
  for (std::size_t r = 0; r < n; ++r) {
    chunks[r * n + rank].output = static_cast<std::byte*>(outputs[r].data);
    chunks[r * n + rank].count = outputs[r].count;
  }
}

}  // namespace ringcomm
