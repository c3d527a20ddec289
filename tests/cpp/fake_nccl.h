// As much of NCCL as csrc/gpu/nccl/ calls, on the streams of fake_stream.h.
//
// Communicators are made when all ranks have asked for them, and say "in progress" until then. The
// first group that uses an edge waits in ncclGroupEnd for the group of the peer that does, as NCCL
// connects them there. A group publishes its sends, takes what it receives, and waits until its
// sends are taken, or its communicator aborted or revoked; a revoked one takes no more.
// Communicators that a captured graph refers to are not finalised or aborted as long as it exists.
#pragma once

#include <atomic>

namespace fake {

// The next ncclGroupEnd of a communicator's rank fails.
extern std::atomic<int> failing_rank;
extern std::atomic<int> open_comms;
// How many were destroyed, in good order, and not aborted.
extern std::atomic<int> destroyed_comms;
// How often NCCL would have waited without end for a graph to go.
extern std::atomic<int> waits_for_graphs;
// How often a communicator was freed that a graph refers to.
extern std::atomic<int> frees_under_graphs;
// How often a communicator was freed while a thread was inside NCCL for it.
extern std::atomic<int> frees_under_threads;
// How many groups a communicator has ahead of what is done before ncclGroupEnd waits.
extern std::atomic<int> most_ahead;
// The most CTAs that any communicator may use.
extern std::atomic<int> most_ctas;
// How many edges are connected, in one direction and counted at both of its ends.
extern std::atomic<int> num_edges;
// How many threads wait in ncclGroupEnd for an edge.
extern std::atomic<int> connecting;

}  // namespace fake
