#include "plan/bidirectional_ring.h"

#include "plan/arguments.h"
#include "plan/compose.h"

namespace ringcomm {
namespace {

// n-1 steps each way around. The first sends the chunks that belong `ahead` ranks from here, in the
// direction from which they are awaited; each later one sends what the step before it received.
Plan both_ways_round(int rank, int world_size, int ahead, bool reduce) {
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

}  // namespace

Plan bidirectional_ring_reduce_scatter(int rank, int world_size) {
  check_rank(rank, world_size);
  return both_ways_round(rank, world_size, /*ahead=*/1, /*reduce=*/true);
}

Plan bidirectional_ring_all_gather(int rank, int world_size) {
  check_rank(rank, world_size);
  return both_ways_round(rank, world_size, /*ahead=*/0, /*reduce=*/false);
}

Plan bidirectional_ring_all_reduce(int rank, int world_size) {
  return then(bidirectional_ring_reduce_scatter(rank, world_size),
              bidirectional_ring_all_gather(rank, world_size));
}

std::vector<Phase> bidirectional_ring_all_reduce_phases(int world_size) {
  return {{"reduce-scatter", world_size - 1}, {"all-gather", world_size - 1}};
}

}  // namespace ringcomm
