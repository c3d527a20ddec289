#include "core/collectives.h"

#include <utility>

namespace ringcomm {
namespace {

// A null pointer: this rank has no part in it.
Chunk chunk(const void* input, void* output, std::size_t count) {
  return {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count};
}

// A call that only moves data ignores the operation.
Reduction only_moved(const Call& call) { return {.dtype = call.dtype, .op = ReduceOp::kSum}; }

}  // namespace

Collectives::Collectives(int rank, int world_size, Selection selection)
    : rank_(rank),
      world_size_(world_size),
      programs_(rank, world_size, std::move(selection)),
      policy_({.world_size = world_size,
               .choices = programs_.selection().choices,
               .reproducible = is_reproducible()}) {}

void Collectives::agree_on(GroupFacts facts) {
  facts.world_size = world_size_;
  facts.choices = programs_.selection().choices;
  facts.reproducible = is_reproducible();
  programs_.place(facts.host_of);
  facts.host_of_plans = programs_.selection().host_of;
  policy_ = Policy(facts);
}

template <typename BlockOf>
void Collectives::set_blocks_by_rank(BlockOf block_of) {
  blocks_.clear();
  for (int r = 0; r < world_size_; ++r) blocks_.push_back(block_of(r));
}

void Collectives::run(Call call, const Reduction& reduction, Timeout timeout) {
  prepare_choice(timeout);
  call.algorithm = policy_.algorithm(call, executor_kind());
  carry_out(call, reduction, timeout);
}

std::span<const Chunk> Collectives::chunks(const Call& call, int num_chunks) {
  if (static_cast<std::size_t>(num_chunks) == blocks_.size()) return blocks_;
  const int per_block = num_chunks / static_cast<int>(blocks_.size());
  chunks_.clear();
  for (const Chunk& block : blocks_) {
    divide(block, element_size(call.dtype), per_block, chunks_);
  }
  return chunks_;
}

void Collectives::all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                             Timeout timeout) {
  const Call call = make_call(Collective::kAllReduce, count, reduce);
  blocks_.assign(1, chunk(input, output, count));
  run(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce,
                                 Timeout timeout) {
  Call call = make_call(Collective::kReduceScatter, total_count(inputs), reduce);
  call.layout = layout_of(inputs);
  set_blocks_by_rank(
      [&](int r) { return chunk(inputs[r].data, r == rank_ ? output : nullptr, inputs[r].count); });
  run(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::all_gather(const void* input, std::span<const Output> outputs, ElementType type,
                             Timeout timeout) {
  Call call = make_call(Collective::kAllGather, total_count(outputs), type);
  call.layout = layout_of(outputs);
  set_blocks_by_rank([&](int r) {
    return chunk(r == rank_ ? input : nullptr, outputs[r].data, outputs[r].count);
  });
  run(call, only_moved(call), timeout);
}

void Collectives::broadcast(void* data, std::size_t count, ElementType type, int root,
                            Timeout timeout) {
  Call call = make_call(Collective::kBroadcast, count, type);
  set_root(call, root, world_size_);
  blocks_.assign(1, chunk(data, data, count));
  run(call, only_moved(call), timeout);
}

void Collectives::reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                         int root, Timeout timeout) {
  Call call = make_call(Collective::kReduce, count, reduce);
  set_root(call, root, world_size_);
  blocks_.assign(1, chunk(input, rank_ == root ? output : nullptr, count));
  run(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::gather(const void* input, std::span<void* const> outputs, std::size_t count,
                         ElementType type, int root, Timeout timeout) {
  Call call = make_call(Collective::kGather, count, type);
  set_root(call, root, world_size_);
  set_blocks_by_rank([&](int r) {
    return chunk(r == rank_ ? input : nullptr, rank_ == root ? outputs[r] : nullptr, count);
  });
  run(call, only_moved(call), timeout);
}

void Collectives::scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                          ElementType type, int root, Timeout timeout) {
  Call call = make_call(Collective::kScatter, count, type);
  set_root(call, root, world_size_);
  set_blocks_by_rank([&](int r) {
    return chunk(rank_ == root ? inputs[r] : nullptr, r == rank_ ? output : nullptr, count);
  });
  run(call, only_moved(call), timeout);
}

void Collectives::all_to_all(std::span<const Input> inputs, std::span<const Output> outputs,
                             ElementType type, Timeout timeout) {
  const Call call = make_call(Collective::kAllToAll, 0, type);
  // Block i * world_size + j is what rank i has for rank j.
  const std::size_t n = inputs.size();
  blocks_.assign(n * n, Chunk{});
  for (std::size_t r = 0; r < n; ++r) {
    blocks_[rank_ * n + r] = chunk(inputs[r].data, nullptr, inputs[r].count);
  }
  for (std::size_t r = 0; r < n; ++r) {
    blocks_[r * n + rank_].output = static_cast<std::byte*>(outputs[r].data);
    blocks_[r * n + rank_].count = outputs[r].count;
  }
  run(call, only_moved(call), timeout);
}

}  // namespace ringcomm
