// The ring: reduce-scatter, all-gather, and all-reduce as the one after the other.
//
// The n ranks stand in a circle. Each sends only to the next one and receives only from the
// previous one, and each link carries one chunk in every step, so that no link ever idles and no
// link is ever shared:
//
//                    chunk                 chunk
//            rank 0 ------->  rank 1
//              ^                 |
//              |                 |         the buffer on every rank:
//              |                 v
//            rank 3 <-------  rank 2       | chunk 0 | chunk 1 | chunk 2 | chunk 3 |
//
// Follow one chunk. Chunk c sets out from rank c+1 and goes once around; every rank on the way adds
// its own part and passes on the sum. When it reaches rank c it has met everyone: it is complete,
// and c is where reduce-scatter leaves it. All-gather sends it around a second time, now only to be
// copied. Chunk 0 among 4 ranks, x0 to x3 being what each rank holds in it:
//
//       rank 1          rank 2          rank 3          rank 0
//         x1  --------->  x1+x2  ------>  x1+x2+x3  --->  x1+x2+x3+x0      reduce-scatter
//       complete <----------------------------------------   |
//           '--------->  complete  --->  complete                          all-gather
//
// All n chunks travel at once, each one link behind the next, so every link is busy in every step.
// For 4 ranks, "3 > < 2" meaning "sends chunk 3 to the next rank, receives chunk 2 from the
// previous one" (prev and next of rank r are r-1 and r+1; all such arithmetic is modulo n):
//
//                      step    rank 0     rank 1     rank 2     rank 3
//                        0     3 > < 2    0 > < 3    1 > < 0    2 > < 1
//      reduce-scatter    1     2 > < 1    3 > < 2    0 > < 3    1 > < 0    received chunks are
//                        2     1 > < 0    2 > < 1    3 > < 2    0 > < 3    added to one's own
//
//                        3     0 > < 3    1 > < 0    2 > < 1    3 > < 2
//      all-gather        4     3 > < 2    0 > < 3    1 > < 0    2 > < 1    received chunks
//                        5     2 > < 1    3 > < 2    0 > < 3    1 > < 0    replace one's own
//
// What a rank receives in one step is what it sends in the next: an executor can receive, add and
// forward in one pass over the data.
//
// Invariant of reduce-scatter. Let d = (r - c - 1) mod n, the number of links from rank c+1, where
// chunk c sets out, to rank r. After step s, rank r holds in chunk c
//
//      the sum over ranks c+1, c+2, ..., r     if d <= s+1    (d+1 of them: the chunk has been
//      here) its own input alone                     otherwise      (the chunk is still on its way)
//
// Step s moves exactly the chunks with d = s to d = s+1. After the last step, s = n-2, all have
// d <= n-1 = s+1, and chunk r at rank r, whose d is n-1, is the sum over all n ranks.
// Invariant of all-gather: after step s (its own count) rank r holds chunks r, r-1, ..., r-s-1
// complete; after s = n-2 that is all of them.
//
// Every chunk is summed along one path, so all ranks end with the same bits; the order of the
// additions differs from chunk to chunk, so results depend on where an element lies in the buffer.
//
// Cost, for nbytes on each rank: n-1 steps of nbytes/n in each half, so all-reduce sends
//
//      2 (n-1)/n * nbytes  per rank, in  2 (n-1)  latencies.
//
// No all-reduce sends less from its busiest rank, whatever the network, and the volume hardly grows
// with n: that is why the ring wins for large buffers. The latency grows with n: that is why it
// loses for small ones (see plan/direct.h).
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations.
// Journal of Parallel and Distributed Computing 69(2), 117-124, 2009.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// world_size chunks; a world_size of 1 needs no steps. Throw std::invalid_argument for a rank
// outside of 0 ... world_size-1.

// Before: all chunks on every rank. After: chunk r on rank r is the sum; the others are partial
// sums.
Plan ring_reduce_scatter(int rank, int world_size);

// Before: chunk r on rank r. After: all chunks on every rank.
Plan ring_all_gather(int rank, int world_size);

// ring_reduce_scatter, then ring_all_gather.
Plan ring_all_reduce(int rank, int world_size);

}  // namespace ringcomm
