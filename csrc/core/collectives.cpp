#include "core/collectives.h"

#include <utility>

#include "plan/grid.h"
#include "plan/network.h"

namespace ringcomm {
namespace {

// Direct exchange inside hosts needs room for all chunks that a rank sends there, where rings need
// it for those of a column. More than so many make small slices.
constexpr int kMostExchanged = 32;

// The mean of integers is that of their sum, which their own type may not hold: it must not travel.
bool adds_at_once(const Call& call) {
  return call.reduces && call.op == ReduceOp::kAvg && !is_floating_point(call.dtype);
}

// Floats of 16 and 8 bits: how often sums are rounded depends on the algorithm, and is not to
// depend on what was measured.
bool rounds_often(const Call& call) { return call.reduces && element_size(call.dtype) < 4; }

}  // namespace

Collectives::Collectives(int rank, int world_size, Selection selection)
    : rank_(rank), world_size_(world_size), programs_(rank, world_size, std::move(selection)) {
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    const Algorithm& by_neighbours = default_algorithm(collective);
    const auto id_or = [&](const char* name, AlgorithmId otherwise) {
      const Algorithm* const found = find_algorithm(collective, name);
      return found != nullptr ? id_of(*found) : otherwise;
    };
    const AlgorithmId direct = id_or("direct", id_of(by_neighbours));
    automatic_[c] = {id_of(by_neighbours), direct, id_or("one_shot", direct),
                     id_or("double_tree", id_of(by_neighbours)),
                     id_or("recursive_doubling", direct)};
  }
}

void Collectives::place(const Placement& placement, const Link& link) {
  programs_.place(placement.host_of);
  const Grid grid(world_size_, placement.host_of);
  const bool exchanges = (grid.num_columns() - 1) * grid.num_hosts() <= kMostExchanged;
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    const Algorithm* by_neighbours = find_algorithm(collective, "hierarchical");
    if (by_neighbours == nullptr) continue;
    const Algorithm* direct =
        exchanges ? find_algorithm(collective, "hierarchical_direct") : by_neighbours;
    automatic_[c] = {id_of(*by_neighbours), id_of(*direct), id_of(*direct), id_of(*by_neighbours),
                     id_of(*direct)};
  }
  doubling_ = id_of(*find_algorithm(Collective::kAllReduce, "hierarchical_doubling"));
  doubling_most_ = grid.num_columns() * doubling_pays_up_to(grid.num_hosts(), link);
}

AlgorithmId Collectives::choose(const Call& call) const {
  if (adds_at_once(call)) return id_of(*find_algorithm(call.collective, "direct"));
  if (const AlgorithmId* selected = programs_.selected(call.collective)) return *selected;
  const std::size_t nbytes = call.count * element_size(call.dtype);
  if (const AlgorithmId* tuned = tuning_.find(call.collective, nbytes);
      tuned != nullptr && !rounds_often(call)) {
    return *tuned;
  }
  if (call.collective == Collective::kAllReduce && static_cast<double>(nbytes) <= doubling_most_) {
    return doubling_;
  }
  const AlgorithmFamily family = family_of(call.collective, call.count, call.dtype);
  return automatic_[static_cast<int>(call.collective)][static_cast<int>(family)];
}

void Collectives::reduce_by(Call call, const Reduce& reduce, Timeout timeout) {
  prepare_choice(timeout);
  call.algorithm = choose(call);
  carry_out(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::move_by(Call call, Timeout timeout) {
  prepare_choice(timeout);
  call.algorithm = choose(call);
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
