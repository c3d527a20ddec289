#include "programs.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan/chain.h"
#include "plan/direct.h"
#include "plan/ring.h"
#include "plan/rooted.h"

namespace ringcomm {

Plan make_plan(Collective collective, Algorithm algorithm, int rank, int n, int root) {
  const bool ring = algorithm == Algorithm::kRing;
  switch (collective) {
    case Collective::kAllReduce:
      return ring ? ring_all_reduce(rank, n) : direct_all_reduce(rank, n);
    case Collective::kReduceScatter:
      return ring ? ring_reduce_scatter(rank, n) : direct_reduce_scatter(rank, n);
    case Collective::kAllGather:
      return ring ? ring_all_gather(rank, n) : direct_all_gather(rank, n);
    case Collective::kBroadcast:
      return ring ? chain_broadcast(rank, n, root) : direct_broadcast(rank, n, root);
    case Collective::kReduce:
      return ring ? chain_reduce(rank, n, root) : direct_reduce(rank, n, root);
    case Collective::kGather:
      return gather(rank, n, root);
    case Collective::kScatter:
      return scatter(rank, n, root);
    case Collective::kAllToAll:
      return all_to_all(rank, n);
    case Collective::kBarrier:
      break;  // no data: communicators have their own ways
  }
  throw std::logic_error(std::string("no program for ") + to_string(collective));
}

const Program& Programs::find(Collective collective, Algorithm algorithm, int root) {
  const auto key = std::make_tuple(collective, algorithm, root);
  const auto known = programs_.find(key);
  if (known != programs_.end()) return known->second;

  auto plan_of = [&](int r) { return make_plan(collective, algorithm, r, world_size_, root); };
  const int num_chunks = plan_of(rank_).num_chunks;
  const Contract contract(collective, world_size_, num_chunks, std::max(root, 0));
  std::vector<bool> inputs(num_chunks), outputs(num_chunks);
  for (int c = 0; c < num_chunks; ++c) inputs[c] = !contract.before(rank_, c).empty();
  for (int c : contract.promised_chunks(rank_)) outputs[c] = true;
  Program program = compile(plan_of, rank_, world_size_, inputs, outputs);
  // The sums that ranks send the root are none of their outputs.
  if (collective == Collective::kReduce) program.num_sliced_steps = program.num_steps;
  return programs_.emplace(key, std::move(program)).first->second;
}

}  // namespace ringcomm
