// The bidirectional ring: two rings at once, one each way around.
//
// plan/ring.h uses a link in one direction only: every rank sends to the next one and receives from
// the previous one. Where a link carries as much in the other direction at the same time, half of
// it idles. So the buffer is halved, and one half goes around clockwise, the other anticlockwise:
//
//                 forward, chunks 0, 2, 4, 6          backward, chunks 1, 3, 5, 7
//
//                   rank 0 -----> rank 1                rank 0 <----- rank 1
//                     ^             |                     |             ^
//                     |             v                     v             |
//                   rank 3 <----- rank 2                rank 3 -----> rank 2
//
// Each of n ranks owns two chunks of 2n: chunk 2r goes forward as chunk r does in plan/ring.h,
// chunk 2r+1 in its mirror image, where "next" and "previous" are exchanged. In step s = 0, ...,
// n-2 (all arithmetic on ranks modulo n) rank r
//
//      reduce-scatter    sends to r+1 chunk 2(r-s-1),       receives from r-1 chunk 2(r-s-2),
//                        sends to r-1 chunk 2(r+s+1) + 1,   receives from r+1 chunk 2(r+s+2) + 1
//      all-gather        sends to r+1 chunk 2(r-s),         receives from r-1 chunk 2(r-s-1),
//                        sends to r-1 chunk 2(r+s) + 1,     receives from r+1 chunk 2(r+s+1) + 1
//
// Invariant: that of plan/ring.h, for the even chunks along the ranks and for the odd ones against
// them. After step s of reduce-scatter, chunk 2c on rank c+s+2 is the sum over the ranks c+1, ...,
// c+s+2, and chunk 2c+1 on rank c-s-2 that over c-1, ..., c-s-2. After step s of all-gather, rank r
// holds the even chunks of the ranks r-s-1, ..., r and the odd ones of r, ..., r+s+1. Each chunk is
// summed along one path: all ranks end with the same bits.
//
// Cost of all-reduce, for nbytes on each rank:
//
//      2 (n-1)/n * nbytes  sent and received by each rank, half of it each way, and  2 (n-1)
//      latencies.
//
// That is the ring's volume and its number of latencies, in half the time for large buffers if a
// rank's two links are independent and carry data both ways at once, as in a torus. Where all that
// a rank sends leaves through one port, nothing is gained. Two ranks have but one link, and use it
// as they do in a ring.
//
// Rings in both directions of a torus' links, as the ports of all nodes work at once:
// P. Sack, W. Gropp: Collective algorithms for multiported torus networks.
// ACM Transactions on Parallel Computing 1(2), article 12, 2015.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// 2*world_size chunks, of which 2r and 2r+1 are rank r's; a world_size of 1 needs no steps.

// n-1 steps each way around. The first sends the chunks that belong `ahead` ranks from here, in the
// direction from which they are awaited; each later one sends what the step before it received.
inline Plan both_ways_round(int rank, int world_size, int ahead, bool reduce) {
  const int n = world_size;
  const int next = (rank + 1) % n;
  const int prev = (rank - 1 + n) % n;
  Plan plan{.num_chunks = 2 * n, .steps = {}};
  plan.steps.reserve(n - 1);
  int forward = (rank - ahead + n) % n;
  int backward = (rank + ahead) % n;
  for (int step = 0; step < n - 1; ++step) {
    const int from_prev = (forward - 1 + n) % n;
    const int from_next = (backward + 1) % n;
    plan.steps.push_back(
        {.sends = {{next, 2 * forward, 1}, {prev, 2 * backward + 1, 1}},
         .recvs = {{prev, 2 * from_prev, 1, reduce}, {next, 2 * from_next + 1, 1, reduce}}});
    forward = from_prev;
    backward = from_next;
  }
  return plan;
}

// Before: all chunks on every rank. After: rank r's chunks on rank r are the sum.
inline Plan bidirectional_ring_reduce_scatter(int rank, int world_size) {
  return both_ways_round(rank, world_size, /*ahead=*/1, /*reduce=*/true);
}

// Before: rank r's chunks on rank r. After: all chunks on every rank.
inline Plan bidirectional_ring_all_gather(int rank, int world_size) {
  return both_ways_round(rank, world_size, /*ahead=*/0, /*reduce=*/false);
}

inline Plan bidirectional_ring_all_reduce(int rank, int world_size) {
  return then(bidirectional_ring_reduce_scatter(rank, world_size),
              bidirectional_ring_all_gather(rank, world_size));
}

inline std::vector<Phase> bidirectional_ring_all_reduce_phases(int world_size) {
  return {{"reduce-scatter", world_size - 1}, {"all-gather", world_size - 1}};
}

}  // namespace ringcomm
