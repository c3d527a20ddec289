#include "core/collectives.h"

#include <utility>

namespace ringcomm {

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

void Collectives::reduce_by(Call call, const Reduce& reduce, Timeout timeout) {
  prepare_choice(timeout);
  call.algorithm = policy_.algorithm(call, executor_kind());
  carry_out(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::move_by(Call call, Timeout timeout) {
  prepare_choice(timeout);
  call.algorithm = policy_.algorithm(call, executor_kind());
  carry_out(call, {.dtype = call.dtype, .op = ReduceOp::kSum}, timeout);
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
  one_block(input, output, count, blocks_);
  reduce_by(call, reduce, timeout);
}

void Collectives::reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce,
                                 Timeout timeout) {
  Call call = make_call(Collective::kReduceScatter, total_count(inputs), reduce);
  call.layout = layout_of(inputs);
  blocks_to_reduce_scatter(inputs, output, rank_, blocks_);
  reduce_by(call, reduce, timeout);
}

void Collectives::all_gather(const void* input, std::span<const Output> outputs, ElementType type,
                             Timeout timeout) {
  Call call = make_call(Collective::kAllGather, total_count(outputs), type);
  call.layout = layout_of(outputs);
  blocks_to_all_gather(input, outputs, rank_, blocks_);
  move_by(call, timeout);
}

void Collectives::broadcast(void* data, std::size_t count, ElementType type, int root,
                            Timeout timeout) {
  Call call = make_call(Collective::kBroadcast, count, type);
  set_root(call, root, world_size_);
  one_block(data, data, count, blocks_);
  move_by(call, timeout);
}

void Collectives::reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                         int root, Timeout timeout) {
  Call call = make_call(Collective::kReduce, count, reduce);
  set_root(call, root, world_size_);
  one_block(input, rank_ == root ? output : nullptr, count, blocks_);
  reduce_by(call, reduce, timeout);
}

void Collectives::gather(const void* input, std::span<void* const> outputs, std::size_t count,
                         ElementType type, int root, Timeout timeout) {
  Call call = make_call(Collective::kGather, count, type);
  set_root(call, root, world_size_);
  blocks_to_gather(input, rank_ == root ? outputs : std::span<void* const>{}, count, rank_,
                   world_size_, blocks_);
  move_by(call, timeout);
}

void Collectives::scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                          ElementType type, int root, Timeout timeout) {
  Call call = make_call(Collective::kScatter, count, type);
  set_root(call, root, world_size_);
  blocks_to_scatter(rank_ == root ? inputs : std::span<const void* const>{}, output, count, rank_,
                    world_size_, blocks_);
  move_by(call, timeout);
}

void Collectives::all_to_all(std::span<const Input> inputs, std::span<const Output> outputs,
                             ElementType type, Timeout timeout) {
  const Call call = make_call(Collective::kAllToAll, 0, type);
  blocks_to_all_to_all(inputs, outputs, rank_, blocks_);
  move_by(call, timeout);
}

}  // namespace ringcomm
