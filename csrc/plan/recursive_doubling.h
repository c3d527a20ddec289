// Recursive doubling: an all-reduce of the whole buffer in log2 n steps.
//
// Ranks pair up, exchange all that they have and add it to their own; then pairs pair up, then
// fours, until everyone has everything. For 8 ranks, whose sum rank 2 holds:
//
//      step    pairs are              rank 2 with    then holds the sum over ranks
//
//        0     0-1, 2-3, 4-5, 6-7     rank 3         2 3
//        1     0-2, 1-3, 4-6, 5-7     rank 0         0 1 2 3
//        2     0-4, 1-5, 2-6, 3-7     rank 6         0 1 2 3 4 5 6 7
//
// With m = 1, 2, ..., n/2 for the distance of a pair, rank r exchanges with r xor m.
//
// Invariant. After the step of distance m, rank r holds the sum over the 2m consecutive ranks, of
// which it is one, that begin at a multiple of 2m. The two ranks of a pair add the same two sums,
// one of them the other way round, which gives the same bits, as every op is commutative: by
// induction on the steps, the ranks that hold the same sum hold the same bits, in the end all.
//
// Group sizes that are no powers of two: the ranks beyond a power of two are folded into others
// (plan/fold.h), and "rank" above means a place among the rest.
//
// Cost, for nbytes on each rank: log2 n * nbytes sent by each rank, in log2 n latencies. Other
// group sizes have floor(log2 n) + 2 steps. One shot (plan/direct.h) needs a single latency, but
// n-1 messages of nbytes at each rank; the ring sends less than 2 * nbytes, in 2 (n-1) latencies.
// Between them, for small buffers in large groups, this is the best.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH. International Journal of High Performance Computing Applications 19(1), 49-66, 2005.
#pragma once

#include "plan/fold.h"
#include "plan/plan.h"

namespace ringcomm {

// One chunk, the whole buffer; a world_size of 1 needs no steps.

inline Plan doubling_of_whole_buffer(int rank, const Fold& fold) {
  Plan plan{.num_chunks = 1, .steps = {}};
  for (int distance = 1; distance < fold.core_size(); distance *= 2) {
    Step& step = plan.steps.emplace_back();
    if (fold.is_folded(rank)) continue;
    const int peer = fold.rank_at(fold.place(rank) ^ distance);
    step.sends = {{.peer = peer, .first_chunk = 0, .num_chunks = 1}};
    step.recvs = {{.peer = peer, .first_chunk = 0, .num_chunks = 1, .reduce = true}};
  }
  return plan;
}

inline Plan recursive_doubling_all_reduce(int rank, int world_size) {
  const Fold fold(world_size);
  const auto whole_buffer = [](int) { return std::vector<ChunkRange>{{0, 1}}; };
  return then(
      then(fold.in(rank, 1, whole_buffer, /*reduce=*/true), doubling_of_whole_buffer(rank, fold)),
      fold.out(rank, 1, whole_buffer));
}

inline std::vector<Phase> recursive_doubling_all_reduce_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"doubling", fold.log2_core_size()}});
}

}  // namespace ringcomm
