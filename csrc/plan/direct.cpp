#include "plan/direct.h"

#include <utility>

#include "plan/arguments.h"
#include "plan/compose.h"
#include "plan/rooted.h"

namespace ringcomm {
namespace {

// One step with every other rank. Sends begin with the next rank, so that not all turn to rank 0
// first; receives are in rank order, the order in which they are added.
template <typename SentChunk, typename ReceivedChunk>
Plan exchange(int rank, int world_size, int num_chunks, SentChunk sent, ReceivedChunk received,
              bool reduce) {
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

}  // namespace

Plan direct_reduce_scatter(int rank, int world_size) {
  check_rank(rank, world_size);
  return exchange(
      rank, world_size, world_size, [](int peer) { return peer; }, [=](int) { return rank; },
      /*reduce=*/true);
}

Plan direct_all_gather(int rank, int world_size) {
  check_rank(rank, world_size);
  return exchange(
      rank, world_size, world_size, [=](int) { return rank; }, [](int peer) { return peer; },
      /*reduce=*/false);
}

Plan direct_all_reduce(int rank, int world_size) {
  return then(direct_reduce_scatter(rank, world_size), direct_all_gather(rank, world_size));
}

std::vector<Phase> direct_all_reduce_phases(int world_size) {
  const int num_steps = world_size == 1 ? 0 : 1;
  return {{"reduce-scatter", num_steps}, {"all-gather", num_steps}};
}

Plan direct_reduce(int rank, int world_size, int root) {
  return then(direct_reduce_scatter(rank, world_size), gather(rank, world_size, root));
}

std::vector<Phase> direct_reduce_phases(int world_size) {
  const int num_steps = world_size == 1 ? 0 : 1;
  return {{"reduce-scatter", num_steps}, {"gather", num_steps}};
}

Plan one_shot_all_reduce(int rank, int world_size) {
  check_rank(rank, world_size);
  const auto whole_buffer = [](int) { return 0; };
  return exchange(rank, world_size, 1, whole_buffer, whole_buffer, /*reduce=*/true);
}

Plan direct_broadcast(int rank, int world_size, int root) {
  check_rank(rank, world_size);
  check_root(root, world_size);
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

Plan all_to_all(int rank, int world_size) {
  check_rank(rank, world_size);
  check_square(world_size);
  return exchange(
      rank, world_size, world_size * world_size, [=](int peer) { return rank * world_size + peer; },
      [=](int peer) { return peer * world_size + rank; }, /*reduce=*/false);
}

}  // namespace ringcomm
