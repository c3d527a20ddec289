#include "plan/rooted.h"

#include <utility>

#include "plan/arguments.h"

namespace ringcomm {
namespace {

// One step in which the root has one transfer per other rank and every other rank has one with the
// root, each of the chunk that bears the non-root's number.
Plan star(int rank, int world_size, int root, std::vector<Transfer> Step::*at_root,
          std::vector<Transfer> Step::*elsewhere) {
  check_rank(rank, world_size);
  check_root(root, world_size);
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

}  // namespace

Plan gather(int rank, int world_size, int root) {
  return star(rank, world_size, root, &Step::recvs, &Step::sends);
}

Plan scatter(int rank, int world_size, int root) {
  return star(rank, world_size, root, &Step::sends, &Step::recvs);
}

}  // namespace ringcomm
