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
// Gather and scatter are what of it begins or ends at one rank: each chunk crosses one link once,
// the least possible, (n-1)/n * nbytes in or out of the root, where nbytes is the whole buffer.
//
// Reduce-scatter followed by all-gather (or by a gather to the root) for long vectors:
// R. Rabenseifner: Optimization of collective reduction operations. ICCS 2004, LNCS 3036, 1-9.
// Here each half is a single exchange instead of recursive halving and doubling.
#pragma once

#include <utility>

#include "plan/plan.h"

namespace ringcomm {

// A world_size of 1 needs no steps.

// One step with every other rank. Sends begin with the next rank, so that not all turn to rank 0
// first; receives are in rank order, the order in which they are added.
template <typename SentChunk, typename ReceivedChunk>
inline Plan exchange(int rank, int world_size, int num_chunks, SentChunk sent,
                     ReceivedChunk received, bool reduce) {
  Plan plan{.num_chunks = num_chunks, .steps = {}};
  if (world_size == 1) return plan;
  Step step;
  step.sends.reserve(world_size - 1);
  step.recvs.reserve(world_size - 1);
  for (int distance = 1; distance < world_size; ++distance) {
    const int peer = (rank + distance) % world_size;
    step.sends.push_back({.peer = peer, .first_chunk = sent(peer), .num_chunks = 1});
  }
  for (int peer = 0; peer < world_size; ++peer) {
    if (peer == rank) continue;
    step.recvs.push_back(
        {.peer = peer, .first_chunk = received(peer), .num_chunks = 1, .reduce = reduce});
  }
  plan.steps.push_back(std::move(step));
  return plan;
}

// world_size chunks. Before: all chunks on every rank. After: chunk r on rank r is the sum, the
// others are rank r's own input.
inline Plan direct_reduce_scatter(int rank, int world_size) {
  return exchange(
      rank, world_size, world_size, [](int peer) { return peer; }, [=](int) { return rank; },
      /*reduce=*/true);
}

// world_size chunks. Before: chunk r on rank r. After: all chunks on every rank.
inline Plan direct_all_gather(int rank, int world_size) {
  return exchange(
      rank, world_size, world_size, [=](int) { return rank; }, [](int peer) { return peer; },
      /*reduce=*/false);
}

inline Plan direct_all_reduce(int rank, int world_size) {
  return then(direct_reduce_scatter(rank, world_size), direct_all_gather(rank, world_size));
}

inline std::vector<Phase> direct_all_reduce_phases(int world_size) {
  const int num_steps = world_size == 1 ? 0 : 1;
  return {{"reduce-scatter", num_steps}, {"all-gather", num_steps}};
}

// One step in which the root has one transfer per other rank and every other rank has one with the
// root, each of the chunk that bears the non-root's number.
inline Plan star(int rank, int world_size, int root, std::vector<Transfer> Step::*at_root,
                 std::vector<Transfer> Step::*elsewhere) {
  Plan plan{.num_chunks = world_size, .steps = {}};
  if (world_size == 1) return plan;
  Step step;
  if (rank == root) {
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer == root) continue;
      (step.*at_root).push_back({.peer = peer, .first_chunk = peer, .num_chunks = 1});
    }
  } else {
    (step.*elsewhere).push_back({.peer = root, .first_chunk = rank, .num_chunks = 1});
  }
  plan.steps.push_back(std::move(step));
  return plan;
}

// world_size chunks. Before: chunk r on rank r. After: all chunks on the root.
inline Plan gather(int rank, int world_size, int root) {
  return star(rank, world_size, root, &Step::recvs, &Step::sends);
}

// world_size chunks. Before: all chunks on the root. After: chunk r on rank r.
inline Plan scatter(int rank, int world_size, int root) {
  return star(rank, world_size, root, &Step::sends, &Step::recvs);
}

// All chunks on the root are the sum.
inline Plan direct_reduce(int rank, int world_size, int root) {
  return then(direct_reduce_scatter(rank, world_size), gather(rank, world_size, root));
}

inline std::vector<Phase> direct_reduce_phases(int world_size) {
  const int num_steps = world_size == 1 ? 0 : 1;
  return {{"reduce-scatter", num_steps}, {"gather", num_steps}};
}

// One chunk, the whole buffer: one step.
inline Plan one_shot_all_reduce(int rank, int world_size) {
  const auto whole_buffer = [](int) { return 0; };
  return exchange(rank, world_size, 1, whole_buffer, whole_buffer, /*reduce=*/true);
}

// One chunk, the whole buffer, published by the root: one step.
inline Plan direct_broadcast(int rank, int world_size, int root) {
  Plan plan{.num_chunks = 1, .steps = {}};
  if (world_size == 1) return plan;
  Step step;
  if (rank == root) {
    for (int distance = 1; distance < world_size; ++distance) {
      const int peer = (root + distance) % world_size;
      step.sends.push_back({.peer = peer, .first_chunk = 0, .num_chunks = 1});
    }
  } else {
    step.recvs.push_back({.peer = root, .first_chunk = 0, .num_chunks = 1});
  }
  plan.steps.push_back(std::move(step));
  return plan;
}

// world_size*world_size chunks, of which chunk i*world_size + j is what rank i has for rank j.
// Before: chunks r*world_size + j on rank r. After: also chunks i*world_size + r. One step.
// Throws std::invalid_argument above a world_size of 46340, whose square an int does not hold.
inline Plan all_to_all(int rank, int world_size) {
  check_square(world_size);
  return exchange(
      rank, world_size, world_size * world_size, [=](int peer) { return rank * world_size + peer; },
      [=](int peer) { return peer * world_size + rank; }, /*reduce=*/false);
}

}  // namespace ringcomm
