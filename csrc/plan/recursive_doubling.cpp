#include "plan/recursive_doubling.h"

#include "plan/arguments.h"
#include "plan/compose.h"
#include "plan/fold.h"

namespace ringcomm {
namespace {

Plan doubling(int rank, const Fold& fold) {
  Plan plan{.num_chunks = 1, .steps = {}};
  for (int distance = 1; distance < fold.core_size(); distance *= 2) {
    Step& step = plan.steps.emplace_back();
    if (fold.is_folded(rank)) continue;
    const int peer = fold.rank_at(fold.place(rank) ^ distance);
    step.sends = {{.peer = peer, .first_chunk = 0, .num_chunks = 1}};
    step.recvs = {{.peer = peer, .first_chunk = 0, .num_chunks = 1, .reduce = true}};
  }
  return plan;
}

}  // namespace

Plan recursive_doubling_all_reduce(int rank, int world_size) {
  check_rank(rank, world_size);
  const Fold fold(world_size);
  const auto whole_buffer = [](int) { return std::vector<ChunkRange>{{0, 1}}; };
  return then(then(fold.in(rank, 1, whole_buffer, /*reduce=*/true), doubling(rank, fold)),
              fold.out(rank, 1, whole_buffer));
}

std::vector<Phase> recursive_doubling_all_reduce_phases(int world_size) {
  const Fold fold(world_size);
  return fold.phases({{"doubling", fold.log2_core_size()}});
}

}  // namespace ringcomm
