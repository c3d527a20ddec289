// The pipelined chain: broadcast and reduce along a line of ranks.
//
// The ring cut open at the root. Every rank still sends only to the next one and receives only from
// the previous one (4 ranks, root 1):
//
//      broadcast:   root 1  ---> rank 2 ---> rank 3 ---> rank 0        each copies and forwards
//      reduce:      rank 2  ---> rank 3 ---> rank 0 ---> root 1        each adds and forwards
//
// The whole buffer is one chunk, and a rank's plan is at most two steps: receive it, send it on.
// The pipelining is not in the plan: an executor cuts the chunk into slices, and forwards slice k
// while slice k+1 arrives, so that soon all links are busy at once.
//
// Invariant of broadcast: what a rank sends is the root's data. Invariant of reduce: what a rank
// sends is the sum over the ranks from root+1 to itself.
//
// Cost: nbytes sent per rank, in n-1 latencies to fill the pipeline: in k slices, the time of
// n-2+k slices on one link. No rank can receive the buffer in less than the time of nbytes on its
// link, so for large buffers the chain is optimal.
//
// P. Patarasuk, A. Faraj, X. Yuan: Pipelined broadcast on Ethernet switched clusters. IPDPS 2006.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// One chunk, the whole buffer; a world_size of 1 needs no steps.

// Rank `first` starts, and each rank in turn sends to the next one until all have it.
inline Plan chain(int rank, int world_size, int first, bool reduce) {
  const int n = world_size;
  const int position = (rank - first + n) % n;
  Plan plan{.num_chunks = 1, .steps = {}};
  if (position > 0) {
    const Transfer from_prev{
        .peer = (rank - 1 + n) % n, .first_chunk = 0, .num_chunks = 1, .reduce = reduce};
    plan.steps.push_back({.sends = {}, .recvs = {from_prev}});
  }
  if (position < n - 1) {
    const Transfer to_next{.peer = (rank + 1) % n, .first_chunk = 0, .num_chunks = 1};
    plan.steps.push_back({.sends = {to_next}, .recvs = {}});
  }
  return plan;
}

// Before: the root's buffer. After: the same on every rank.
inline Plan chain_broadcast(int rank, int world_size, int root) {
  return chain(rank, world_size, root, /*reduce=*/false);
}

// Before: every rank's buffer. After: the sum on the root, partial sums on the other ranks.
inline Plan chain_reduce(int rank, int world_size, int root) {
  return chain(rank, world_size, (root + 1) % world_size, /*reduce=*/true);
}

}  // namespace ringcomm
