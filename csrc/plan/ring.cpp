#include "plan/ring.h"

#include "plan/arguments.h"
#include "plan/compose.h"

namespace ringcomm {
namespace {

// n-1 steps around the ring, of which the first sends first_chunk and each later one what the step
// before it received.
Plan ring_round(int rank, int world_size, int first_chunk, bool reduce) {
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

}  // namespace

Plan ring_reduce_scatter(int rank, int world_size) {
  check_rank(rank, world_size);
  return ring_round(rank, world_size, (rank - 1 + world_size) % world_size, /*reduce=*/true);
}

Plan ring_all_gather(int rank, int world_size) {
  check_rank(rank, world_size);
  return ring_round(rank, world_size, rank, /*reduce=*/false);
}

Plan ring_all_reduce(int rank, int world_size) {
  return then(ring_reduce_scatter(rank, world_size), ring_all_gather(rank, world_size));
}

std::vector<Phase> ring_all_reduce_phases(int world_size) {
  return {{"reduce-scatter", world_size - 1}, {"all-gather", world_size - 1}};
}

}  // namespace ringcomm
