#include "plan/barrier.h"

#include "plan/arguments.h"

namespace ringcomm {

Plan barrier(int rank, int world_size) {
  check_rank(rank, world_size);
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
