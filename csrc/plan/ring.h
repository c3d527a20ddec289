// The ring: reduce-scatter, all-gather, and all-reduce as the one after the other.
//
// The n ranks stand in a circle. Each sends only to the next one and receives only from the
// previous one. The buffer is cut into n chunks, and in every step every link carries one of them:
// no link idles, and no link is shared.
//
//            rank 0 -----> rank 1
//              ^             |
//              |             v           the buffer, on every rank:
//            rank 3 <----- rank 2        | chunk 0 | chunk 1 | chunk 2 | chunk 3 |
//
// Follow one chunk. Chunk c sets out from rank c+1 and goes around; every rank on the way adds its
// own part and passes the sum on. When it reaches rank c it has met everyone: it is complete, and
// there reduce-scatter leaves it. All-gather sends it around once more, now to be copied. Chunk 0
// among 4 ranks, where x0, ..., x3 are what the ranks hold in it at first:
//
//                         rank 1       rank 2       rank 3        rank 0
//
//      reduce-scatter       x1 -----> x1+x2 ----> x1+x2+x3 --> x1+x2+x3+x0
//                                                                   |
//      all-gather          sum <------------------------------------'
//                           '--------> sum -------> sum
//
// All n chunks are on their way at once, each one link ahead of the next. For 4 ranks, where
// "3 > < 2" means: sends chunk 3 to the next rank, receives chunk 2 from the previous one:
//
//                      step    rank 0     rank 1     rank 2     rank 3
//
//      reduce-scatter    0     3 > < 2    0 > < 3    1 > < 0    2 > < 1    what is received
//                        1     2 > < 1    3 > < 2    0 > < 3    1 > < 0    is added to
//                        2     1 > < 0    2 > < 1    3 > < 2    0 > < 3    what is there
//
//      all-gather        3     0 > < 3    1 > < 0    2 > < 1    3 > < 2    what is received
//                        4     3 > < 2    0 > < 3    1 > < 0    2 > < 1    replaces
//                        5     2 > < 1    3 > < 2    0 > < 3    1 > < 0    what is there
//
// In general (all arithmetic on ranks and chunks is modulo n): in step s = 0, ..., n-2 rank r
//
//      reduce-scatter    sends chunk r-s-1    receives chunk r-s-2    adds
//      all-gather        sends chunk r-s      receives chunk r-s-1    copies
//
// What a rank receives in one step it sends in the next, so that an executor can receive, add and
// forward in one pass over the data.
//
// Invariant of reduce-scatter. Let d = (r-c-1) mod n be the number of links that chunk c crosses
// from rank c+1, where it sets out, to rank r. After step s, rank r holds in chunk c
//
//      if d <= s+1    the sum over the d+1 ranks c+1, c+2, ..., r    (the chunk has been here)
//      otherwise      its own input alone                            (it has not come so far)
//
// It holds before the first step, s = -1, where only d = 0 is a sum, of one rank. Step s sends from
// each rank the chunk with d = s, and the next rank, for which its d is s+1, adds its own input.
// After the last step, s = n-2, chunk r on rank r has d = n-1 and is the sum over all ranks.
//
// Invariant of all-gather: after its step s, rank r holds chunks r, r-1, ..., r-s-1 complete. After
// the last step, s = n-2, these are all.
//
// Each chunk is summed once, along one path, and copied from there: all ranks end with the same
// bits. The order of the additions differs from chunk to chunk, so the last bit of a floating-point
// sum can depend on where in the buffer an element lies.
//
// Cost. With nbytes on each rank, n-1 steps in each half send nbytes/n, so that an all-reduce takes
//
//      2 (n-1)/n * nbytes  sent and received by each rank, and  2 (n-1)  latencies.
//
// No all-reduce sends less from its busiest rank, and the volume hardly grows with n: that is why
// rings win for large buffers. The number of latencies does grow: that is why they lose for small
// ones (see plan/direct.h).
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations.
// Journal of Parallel and Distributed Computing 69(2), 117-124, 2009.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// world_size chunks; a world_size of 1 needs no steps.

// n-1 steps around the ring, of which the first sends first_chunk and each later one what the step
// before it received.
inline Plan ring_round(int rank, int world_size, int first_chunk, bool reduce) {
  const int n = world_size;
  const int next = (rank + 1) % n;
  const int prev = (rank - 1 + n) % n;
  Plan plan{.num_chunks = n, .steps = {}};
  plan.steps.reserve(n - 1);
  int sent = first_chunk;
  for (int step = 0; step < n - 1; ++step) {
    const int received = (sent - 1 + n) % n;
    plan.steps.push_back(
        {.sends = {{.peer = next, .first_chunk = sent, .num_chunks = 1}},
         .recvs = {{.peer = prev, .first_chunk = received, .num_chunks = 1, .reduce = reduce}}});
    sent = received;
  }
  return plan;
}

// Before: all chunks on every rank. After: chunk r on rank r is the sum, the others are partial.
inline Plan ring_reduce_scatter(int rank, int world_size) {
  return ring_round(rank, world_size, (rank - 1 + world_size) % world_size, /*reduce=*/true);
}

// Before: chunk r on rank r. After: all chunks on every rank.
inline Plan ring_all_gather(int rank, int world_size) {
  return ring_round(rank, world_size, rank, /*reduce=*/false);
}

inline Plan ring_all_reduce(int rank, int world_size) {
  return then(ring_reduce_scatter(rank, world_size), ring_all_gather(rank, world_size));
}

inline std::vector<Phase> ring_all_reduce_phases(int world_size) {
  return {{"reduce-scatter", world_size - 1}, {"all-gather", world_size - 1}};
}

}  // namespace ringcomm
