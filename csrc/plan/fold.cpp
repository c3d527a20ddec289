#include "plan/fold.h"

#include <bit>

namespace ringcomm {
namespace {

std::vector<Transfer> transfers(const std::vector<ChunkRange>& ranges, int peer, bool reduce) {
  std::vector<Transfer> result;
  for (const ChunkRange& range : ranges) {
    result.push_back({peer, range.first_chunk, range.num_chunks, reduce});
  }
  return result;
}

}  // namespace

Fold::Fold(int world_size)
    : core_size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(world_size)))),
      num_folded_(world_size - core_size_) {}

int Fold::log2_core_size() const { return std::countr_zero(static_cast<unsigned>(core_size_)); }

Plan Fold::in(int rank, int num_chunks, const ChunksOf& chunks_of, bool reduce) const {
  Plan plan{.num_chunks = num_chunks, .steps = {}};
  if (num_folded_ == 0) return plan;
  Step step;
  if (is_folded(rank)) {
    step.sends = transfers(chunks_of(rank), rank - 1, /*reduce=*/false);
  } else if (is_folded(rank + 1)) {
    step.recvs = transfers(chunks_of(rank + 1), rank + 1, reduce);
  }
  plan.steps.push_back(step);
  return plan;
}

Plan Fold::out(int rank, int num_chunks, const ChunksOf& chunks_of) const {
  Plan plan{.num_chunks = num_chunks, .steps = {}};
  if (num_folded_ == 0) return plan;
  Step step;
  if (is_folded(rank)) {
    step.recvs = transfers(chunks_of(rank), rank - 1, /*reduce=*/false);
  } else if (is_folded(rank + 1)) {
    step.sends = transfers(chunks_of(rank + 1), rank + 1, /*reduce=*/false);
  }
  plan.steps.push_back(step);
  return plan;
}

std::vector<Phase> Fold::phases(std::vector<Phase> of_core) const {
  if (num_folded_ == 0) return of_core;
  of_core.insert(of_core.begin(), {"fold in", 1});
  of_core.push_back({"fold out", 1});
  return of_core;
}

}  // namespace ringcomm
