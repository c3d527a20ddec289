// Recursive halving and doubling: reduce-scatter and all-gather in log2 n steps.
//
// In reduce-scatter the ranks pair up across the middle of the group, and each pair divides the
// buffer: the lower rank takes the lower half of the chunks from both, the upper one the upper
// half. Now each half of the group has its half of the chunks to sum, and does the same within
// itself, until one chunk is left. For 8 ranks, what rank 2 keeps:
//
//      step    pairs are              rank 2 with    sends chunks    adds to its chunks
//
//        0     0-4, 1-5, 2-6, 3-7     rank 6         4 5 6 7         0 1 2 3
//        1     0-2, 1-3, 4-6, 5-7     rank 0         0 1             2 3
//        2     0-1, 2-3, 4-5, 6-7     rank 3         3               2
//
// All-gather is the same in reverse. What a pair has together, each of its ranks has afterwards:
// with the pairs of step 2, then of step 1, then of step 0, one chunk becomes two, four and eight.
//
// With m for the distance of a pair (n/2, ..., 2, 1 while halving, 1, 2, ..., n/2 while doubling),
// rank r exchanges with r xor m. Let B(r, m) be the m consecutive ranks, of which r is one, that
// begin at a multiple of m; those of its peer are B(r xor m, m).
//
//      halving     sends chunks B(r xor m, m)    receives chunks B(r, m)          adds
//      doubling    sends chunks B(r, m)          receives chunks B(r xor m, m)    copies
//
// Invariant. After the halving step of distance m, rank r holds in the chunks B(r, m) the sums over
// the ranks that differ from r by a multiple of m; these are all once m = 1. After the doubling
// step of distance m, rank r holds the chunks B(r, 2m) complete. Each chunk is summed on one rank,
// along one tree: all ranks end with the same bits.
//
// Group sizes that are no powers of two. The n-p ranks beyond a power of two p are folded into
// others (plan/fold.h), and "rank" above means a place among the p. Reduce-scatter and all-gather
// promise chunk r to rank r: a place owns the chunks of the ranks at that place. All-reduce is free
// to choose: p chunks, one for each place, which are of equal size.
//
// Cost, for nbytes on each rank of n = p, a power of two:
//
//      reduce-scatter, all-gather     (n-1)/n * nbytes  sent per rank    log2 n    latencies
//      all-reduce                   2 (n-1)/n * nbytes  sent per rank  2 log2 n    latencies
//
// The ring's volume, in far fewer steps; but half of it goes to the rank n/2 away, which is another
// host's or crosses many links, where the ring only ever talks to neighbours. Other group sizes add
// two steps, in which a folded rank sends its nbytes (all-gather: its chunk) and gets what it is
// promised; and in all-reduce, of p chunks, 2 (p-1)/p * nbytes between them.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH. International Journal of High Performance Computing Applications 19(1), 49-66, 2005.
// R. Rabenseifner: Optimization of collective reduction operations. ICCS 2004, LNCS 3036, 1-9.
#pragma once

#include <functional>

#include "plan/fold.h"
#include "plan/plan.h"

namespace ringcomm {

// A world_size of 1 needs no steps.

// The chunks are numbered in the order of places: those of place v are first_of(v), ...,
// first_of(v+1) - 1.
struct PlacedChunks {
  int count;
  std::function<int(int place)> first_of;

  Transfer transfer(int peer, int first_place, int num_places, bool reduce) const {
    const int first = first_of(first_place);
    return {peer, first, first_of(first_place + num_places) - first, reduce};
  }
};

inline PlacedChunks one_chunk_per_rank(const Fold& fold) {
  return {fold.rank_at(fold.core_size()), [=](int place) { return fold.rank_at(place); }};
}

inline PlacedChunks one_chunk_per_place(const Fold& fold) {
  return {fold.core_size(), [](int place) { return place; }};
}

inline Plan halving_steps(int rank, const Fold& fold, const PlacedChunks& chunks) {
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

inline Plan doubling_steps(int rank, const Fold& fold, const PlacedChunks& chunks) {
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

inline Fold::ChunksOf all_chunks(const PlacedChunks& chunks) {
  return [count = chunks.count](int) { return std::vector<ChunkRange>{{0, count}}; };
}

inline std::vector<ChunkRange> own_chunk(int rank) { return {{rank, 1}}; }

inline Fold::ChunksOf all_but_own_chunk(const PlacedChunks& chunks) {
  return [count = chunks.count](int rank) {
    std::vector<ChunkRange> ranges = {{0, rank}};
    if (rank + 1 < count) ranges.push_back({rank + 1, count - rank - 1});
    return ranges;
  };
}

// world_size chunks. Before: all chunks on every rank. After: chunk r on rank r is the sum, the
// others are partial.
inline Plan halving_reduce_scatter(int rank, int world_size) {
  const Fold fold(world_size);
  const PlacedChunks chunks = one_chunk_per_rank(fold);
  return then(then(fold.in(rank, chunks.count, all_chunks(chunks), /*reduce=*/true),
                   halving_steps(rank, fold, chunks)),
              fold.out(rank, chunks.count, own_chunk));
}

// world_size chunks. Before: chunk r on rank r. After: all chunks on every rank.
inline Plan doubling_all_gather(int rank, int world_size) {
  const Fold fold(world_size);
  const PlacedChunks chunks = one_chunk_per_rank(fold);
  return then(then(fold.in(rank, chunks.count, own_chunk, /*reduce=*/false),
                   doubling_steps(rank, fold, chunks)),
              fold.out(rank, chunks.count, all_but_own_chunk(chunks)));
}

// As many chunks as the largest power of two in world_size: halving, then doubling.
inline Plan halving_doubling_all_reduce(int rank, int world_size) {
  const Fold fold(world_size);
  const PlacedChunks chunks = one_chunk_per_place(fold);
  return then(then(fold.in(rank, chunks.count, all_chunks(chunks), /*reduce=*/true),
                   then(halving_steps(rank, fold, chunks), doubling_steps(rank, fold, chunks))),
              fold.out(rank, chunks.count, all_chunks(chunks)));
}

inline std::vector<Phase> halving_reduce_scatter_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"halving", fold.log2_core_size()}});
}

inline std::vector<Phase> doubling_all_gather_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"doubling", fold.log2_core_size()}});
}

inline std::vector<Phase> halving_doubling_all_reduce_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"halving", fold.log2_core_size()}, {"doubling", fold.log2_core_size()}});
}

}  // namespace ringcomm
