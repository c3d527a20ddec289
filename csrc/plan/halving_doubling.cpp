#include "plan/halving_doubling.h"

#include <functional>

#include "plan/arguments.h"
#include "plan/compose.h"
#include "plan/fold.h"

namespace ringcomm {
namespace {

// The chunks are numbered in the order of places: those of place v are first_of(v), ...,
// first_of(v+1) - 1.
struct Chunks {
  int count;
  std::function<int(int place)> first_of;

  Transfer transfer(int peer, int first_place, int num_places, bool reduce) const {
    const int first = first_of(first_place);
    return {peer, first, first_of(first_place + num_places) - first, reduce};
  }
};

Chunks one_per_rank(const Fold& fold) {
  return {fold.rank_at(fold.core_size()), [=](int place) { return fold.rank_at(place); }};
}

Chunks one_per_place(const Fold& fold) {
  return {fold.core_size(), [](int place) { return place; }};
}

Plan halving(int rank, const Fold& fold, const Chunks& chunks) {
  Plan plan{.num_chunks = chunks.count, .steps = {}};
  const int place = fold.place(rank);
  for (int distance = fold.core_size() / 2; distance > 0; distance /= 2) {
    Step& step = plan.steps.emplace_back();
    if (fold.is_folded(rank)) continue;
    const int peer = fold.rank_at(place ^ distance);
    const int mine = place & ~(distance - 1);
    step.sends = {chunks.transfer(peer, mine ^ distance, distance, /*reduce=*/false)};
    step.recvs = {chunks.transfer(peer, mine, distance, /*reduce=*/true)};
  }
  return plan;
}

Plan doubling(int rank, const Fold& fold, const Chunks& chunks) {
  Plan plan{.num_chunks = chunks.count, .steps = {}};
  const int place = fold.place(rank);
  for (int distance = 1; distance < fold.core_size(); distance *= 2) {
    Step& step = plan.steps.emplace_back();
    if (fold.is_folded(rank)) continue;
    const int peer = fold.rank_at(place ^ distance);
    const int mine = place & ~(distance - 1);
    step.sends = {chunks.transfer(peer, mine, distance, /*reduce=*/false)};
    step.recvs = {chunks.transfer(peer, mine ^ distance, distance, /*reduce=*/false)};
  }
  return plan;
}

Fold::ChunksOf all_of(const Chunks& chunks) {
  return [count = chunks.count](int) { return std::vector<ChunkRange>{{0, count}}; };
}

std::vector<ChunkRange> own_chunk(int rank) { return {{rank, 1}}; }

Fold::ChunksOf all_but_own(const Chunks& chunks) {
  return [count = chunks.count](int rank) {
    std::vector<ChunkRange> ranges = {{0, rank}};
    if (rank + 1 < count) ranges.push_back({rank + 1, count - rank - 1});
    return ranges;
  };
}

}  // namespace

Plan halving_reduce_scatter(int rank, int world_size) {
  check_rank(rank, world_size);
  const Fold fold(world_size);
  const Chunks chunks = one_per_rank(fold);
  return then(then(fold.in(rank, chunks.count, all_of(chunks), /*reduce=*/true),
                   halving(rank, fold, chunks)),
              fold.out(rank, chunks.count, own_chunk));
}

Plan doubling_all_gather(int rank, int world_size) {
  check_rank(rank, world_size);
  const Fold fold(world_size);
  const Chunks chunks = one_per_rank(fold);
  return then(
      then(fold.in(rank, chunks.count, own_chunk, /*reduce=*/false), doubling(rank, fold, chunks)),
      fold.out(rank, chunks.count, all_but_own(chunks)));
}

Plan halving_doubling_all_reduce(int rank, int world_size) {
  check_rank(rank, world_size);
  const Fold fold(world_size);
  const Chunks chunks = one_per_place(fold);
  return then(then(fold.in(rank, chunks.count, all_of(chunks), /*reduce=*/true),
                   then(halving(rank, fold, chunks), doubling(rank, fold, chunks))),
              fold.out(rank, chunks.count, all_of(chunks)));
}

std::vector<Phase> halving_reduce_scatter_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"halving", fold.log2_core_size()}});
}

std::vector<Phase> doubling_all_gather_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"doubling", fold.log2_core_size()}});
}

std::vector<Phase> halving_doubling_all_reduce_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"halving", fold.log2_core_size()}, {"doubling", fold.log2_core_size()}});
}

}  // namespace ringcomm
