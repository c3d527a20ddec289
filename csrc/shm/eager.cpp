#include "shm/eager.h"

#include <algorithm>
#include <cstring>

#include "reduce/host.h"

namespace ringcomm::shm {
namespace {

std::size_t total_count(const Chunks& blocks, const std::vector<int>& which) {
  std::size_t total = 0;
  for (const int block : which) total += blocks[block].count;
  return total;
}

}  // namespace

Eager::Eager(Collective collective, int world_size, int num_blocks, int root, int rank)
    : rank_(rank) {
  const Contract contract(collective, world_size, num_blocks, root);
  std::vector<std::vector<int>> blocks_of(world_size);
  for (int r = 0; r < world_size; ++r) {
    for (int b = 0; b < num_blocks; ++b) {
      if (contract.holds_before(r, b)) blocks_of[r].push_back(b);
    }
  }
  for (const int block : contract.promised_chunks(rank)) {
    Promise& promise = promises_.emplace_back(block);
    for (int r = 0; r < world_size; ++r) {
      if (contract.after(block).first_in_common(RankSet::single(r))) promise.from.push_back(r);
    }
    const std::vector<int>& payload = blocks_of[promise.from.front()];
    promise.before.assign(payload.begin(), std::ranges::find(payload, block));
  }
  own_ = blocks_of[rank];
  std::ranges::sort(blocks_of);
  const auto again = std::ranges::unique(blocks_of);
  blocks_of.erase(again.begin(), again.end());
  payloads_ = std::move(blocks_of);
}

bool Eager::fits(const Chunks& blocks, std::size_t count) const {
  return std::ranges::all_of(payloads_, [&](const std::vector<int>& payload) {
    return total_count(blocks, payload) <= count;
  });
}

// Blocks that lie behind each other in memory are copied together.
std::size_t Eager::write(const Chunks& blocks, const Reduction& reduction,
                         std::byte* payload) const {
  const std::size_t element_nbytes = element_size(reduction.dtype);
  const std::byte* const start = payload;
  for (std::size_t i = 0; i < own_.size();) {
    const std::byte* begin = blocks[own_[i]].input;
    std::size_t count = 0;
    do {
      count += blocks[own_[i++]].count;
    } while (i < own_.size() && blocks[own_[i]].input == begin + count * element_nbytes);
    if (count == 0) continue;
    if (reduction.op == ReduceOp::kPremulSum) {
      Reduction scaling = reduction;
      scaling.scaled_input = 0;
      const void* input = begin;
      void* output = payload;
      reduce_host(scaling, &input, 1, output, {}, count);
    } else {
      std::memcpy(payload, begin, count * element_nbytes);
    }
    payload += count * element_nbytes;
  }
  return static_cast<std::size_t>(payload - start);
}

void Eager::read(const Chunks& blocks, const Reduction& reduction, Exchange& exchange) {
  const std::size_t element_nbytes = element_size(reduction.dtype);
  for (const Promise& promise : promises_) {
    const Chunk& block = blocks[promise.block];
    const std::size_t offset = total_count(blocks, promise.before) * element_nbytes;
    if (promise.from.size() > 1) {
      inputs_.clear();
      // What is sent may be scaled; else the own input is as good, and nearer.
      const bool own_is_sent = reduction.op == ReduceOp::kPremulSum;
      for (const int r : promise.from) {
        const bool is_own = r == rank_ && !own_is_sent;
        inputs_.push_back(is_own ? block.input : exchange.payload_of(r) + offset);
      }
      void* output = block.output;
      reduce_host(reduction, inputs_.data(), static_cast<int>(inputs_.size()), output, {},
                  block.count);
    } else if (block.count > 0) {
      const int from = promise.from.front();
      const bool is_there = from == rank_ && block.output == block.input;
      if (is_there && reduction.op != ReduceOp::kPremulSum) continue;
      std::memcpy(block.output, exchange.payload_of(from) + offset, block.count * element_nbytes);
    }
  }
}

}  // namespace ringcomm::shm
