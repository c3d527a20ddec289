#include "shm/eager.h"

#include <algorithm>
#include <cstring>

#include "reduce/host.h"
#include "reduce/publish.h"

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
  std::vector<char> is_wanted(num_blocks, 0);
  for (int r = 0; r < world_size; ++r) {
    if (r == rank) continue;
    for (const int block : contract.promised_chunks(r)) {
      if (contract.after(block).first_in_common(RankSet::single(rank))) is_wanted[block] = 1;
    }
  }
  for (const int block : blocks_of[rank]) own_.push_back({block, is_wanted[block] != 0});
  std::ranges::sort(blocks_of);
  const auto again = std::ranges::unique(blocks_of);
  blocks_of.erase(again.begin(), again.end());
  payloads_ = std::move(blocks_of);
}

std::size_t Eager::most_count(const Chunks& blocks) const {
  std::size_t most = 0;
  for (const std::vector<int>& payload : payloads_) {
    most = std::max(most, total_count(blocks, payload));
  }
  return most;
}

std::size_t Eager::count(const Chunks& blocks) const {
  std::size_t total = 0;
  for (const Own& own : own_) total += blocks[own.block].count;
  return total;
}

// Blocks that lie behind each other in memory are copied together.
std::size_t Eager::write(const Chunks& blocks, const Reduction& reduction, std::byte* payload,
                         StoreChoice& stores, bool hands_over) const {
  const std::size_t element_nbytes = element_size(reduction.dtype);
  const std::byte* const start = payload;
  const bool scales = reduction.op == ReduceOp::kPremulSum;
  for (std::size_t i = 0; i < own_.size();) {
    const bool is_sent = own_[i].is_wanted || scales;
    const std::byte* begin = blocks[own_[i].block].input;
    std::size_t count = 0;
    const auto goes_on = [&](const Own& next) {
      return (next.is_wanted || scales) == is_sent &&
             blocks[next.block].input == begin + count * element_nbytes;
    };
    do {
      count += blocks[own_[i++].block].count;
    } while (i < own_.size() && goes_on(own_[i]));
    if (count == 0) continue;
    if (!is_sent) {
      payload += count * element_nbytes;
      continue;
    }
    if (scales) {
      Reduction scaling = reduction;
      scaling.scaled_input = 0;
      const void* input = begin;
      const Copy copy{payload, &stores};
      reduce_host(scaling, &input, 1, nullptr, {&copy, 1}, count);
    } else if (hands_over) {
      publish_message(payload, begin, count * element_nbytes, stores);
    } else {
      publish(payload, begin, count * element_nbytes, stores);
    }
    payload += count * element_nbytes;
  }
  return static_cast<std::size_t>(payload - start);
}

// What is scaled is not what the rank has, and is taken from its payload.
void Eager::keep(const Chunks& blocks, const Reduction& reduction) const {
  if (reduction.op == ReduceOp::kPremulSum) return;
  for (const Promise& promise : promises_) {
    const Chunk& block = blocks[promise.block];
    const bool is_own = promise.from.size() == 1 && promise.from.front() == rank_;
    if (!is_own || block.output == block.input || block.count == 0) continue;
    std::memmove(block.output, block.input, block.count * element_size(reduction.dtype));
  }
}

void Eager::read(const Chunks& blocks, const Reduction& reduction, Exchange& exchange, Pass pass) {
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
                  block.count, pass);
    } else if (block.count > 0) {
      const int from = promise.from.front();
      if (from == rank_ && reduction.op != ReduceOp::kPremulSum) continue;
      copy_host(exchange.payload_of(from) + offset, block.output, {}, block.count * element_nbytes,
                pass);
    }
  }
}

}  // namespace ringcomm::shm
