// The dissemination barrier: no rank leaves before all have arrived.
//
// In round k rank r sends a message to rank r + 2^k, and waits for one from rank r - 2^k (modulo
// n). A message says that its sender has come this far. For 5 ranks, the messages that rank 0
// receives, and the ranks that it then knows to be here:
//
//      round 0    from rank 4    ranks 4, 0
//      round 1    from rank 3    ranks 2, 3, 4, 0      (rank 3 has a message from rank 2)
//      round 2    from rank 1    ranks 1, 2, 3, 4, 0
//
// Invariant: after round k, rank r knows that the 2^(k+1) ranks r - 2^(k+1) + 1, ..., r have
// arrived (all n, once 2^(k+1) >= n). No rank is the bottleneck: each rank sends one message per
// round.
//
// Cost: ceil(log2 n) latencies and no data. The transfers have num_chunks 0.
//
// D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization.
// International Journal of Parallel Programming 17(1), 1-17, 1988.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// No chunks; a world_size of 1 needs no steps.
inline Plan barrier(int rank, int world_size) {
  Plan plan{.num_chunks = 0, .steps = {}};
  const int n = world_size;
  for (int distance = 1; distance < n; distance *= 2) {
    const Transfer to{.peer = (rank + distance) % n};
    const Transfer from{.peer = (rank - distance + n) % n};
    plan.steps.push_back({.sends = {to}, .recvs = {from}});
  }
  return plan;
}

}  // namespace ringcomm
