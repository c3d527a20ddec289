// Direct plans: every rank sends to every other one, in one or two steps.
//
// The ring passes a chunk along n-1 links. Here each rank hands chunk j straight to rank j, which
// receives all n-1 contributions in one step and adds them at once:
//
//      reduce-scatter, 4 ranks                       all-gather, 4 ranks
//      rank 0 receives chunk 0 from 1, 2, 3          rank 0 publishes chunk 0 to 1, 2, 3
//      rank 1 receives chunk 1 from 0, 2, 3          rank 1 publishes chunk 1 to 0, 2, 3
//      rank 2 receives chunk 2 from 0, 1, 3          rank 2 publishes chunk 2 to 0, 1, 3
//      rank 3 receives chunk 3 from 0, 1, 2          rank 3 publishes chunk 3 to 0, 1, 2
//
// Invariant: after the reduce-scatter step, chunk r on rank r is the sum over all ranks, added in
// rank order and rounded once, where the ring rounds at each of n-1 hops.
//
// Cost of all-reduce, for nbytes on each rank: 2 (n-1)/n * nbytes sent per rank, the ring's volume,
// in 2 latencies instead of 2 (n-1). The price is n-1 connections per rank at once, which suits
// ranks that share memory or a full crossbar and not a network with one link per host.
//
// One shot spends volume for the last latency: everyone publishes the whole buffer and each adds
// all n of them, (n-1) * nbytes read per rank in 1 latency. Best for the smallest buffers.
//
// All-to-all is the same exchange of n*n chunks: chunk i*n + j is what rank i has for rank j.
//
// Reduce-scatter followed by all-gather (or by a gather to the root) for long vectors:
// R. Rabenseifner: Optimization of collective reduction operations. ICCS 2004, LNCS 3036, 1-9.
// Here each half is a single exchange instead of recursive halving and doubling.
#pragma once

#include <vector>

#include "plan/phase.h"
#include "plan/plan.h"

namespace ringcomm {

// A world_size of 1 needs no steps. Throw std::invalid_argument for a rank or root outside of
// 0 ... world_size-1.

// world_size chunks. Before: all chunks on every rank. After: chunk r on rank r is the sum, the
// others are rank r's own input.
Plan direct_reduce_scatter(int rank, int world_size);

// world_size chunks. Before: chunk r on rank r. After: all chunks on every rank.
Plan direct_all_gather(int rank, int world_size);

// direct_reduce_scatter, then direct_all_gather.
Plan direct_all_reduce(int rank, int world_size);
std::vector<Phase> direct_all_reduce_phases(int world_size);

// direct_reduce_scatter, then gather: all chunks on the root are the sum.
Plan direct_reduce(int rank, int world_size, int root);
std::vector<Phase> direct_reduce_phases(int world_size);

// One chunk, the whole buffer: one step.
Plan one_shot_all_reduce(int rank, int world_size);

// One chunk, the whole buffer, published by the root: one step.
Plan direct_broadcast(int rank, int world_size, int root);

// world_size*world_size chunks, of which chunk i*world_size + j is what rank i has for rank j.
// Before: chunks r*world_size + j on rank r. After: also chunks i*world_size + r. One step.
// Throws std::invalid_argument above a world_size of 46340, whose square an int does not hold.
Plan all_to_all(int rank, int world_size);

}  // namespace ringcomm
