#include "plan/chain.h"

#include "plan/arguments.h"

namespace ringcomm {
namespace {

// Rank `first` starts, and each rank in turn sends to the next one until all have it.
Plan chain(int rank, int world_size, int first, bool reduce) {
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

}  // namespace

Plan chain_broadcast(int rank, int world_size, int root) {
  check_rank(rank, world_size);
  check_root(root, world_size);
  return chain(rank, world_size, root, /*reduce=*/false);
}

Plan chain_reduce(int rank, int world_size, int root) {
  check_rank(rank, world_size);
  check_root(root, world_size);
  return chain(rank, world_size, (root + 1) % world_size, /*reduce=*/true);
}

}  // namespace ringcomm
