#include "plan/bitwise.h"

#include "plan/arguments.h"
#include "plan/bounds.h"
#include "plan/rendezvous.h"
#include "plan/sums.h"

namespace ringcomm {

std::string BitwiseDifference::to_string() const {
  return "rank " + std::to_string(ranks[0]) + " ends with " + sums[0] + " in chunk " +
         std::to_string(chunk) + ", and rank " + std::to_string(ranks[1]) + " with " + sums[1];
}

std::optional<BitwiseDifference> bitwise_difference(Collective collective,
                                                    const std::vector<Plan>& plans, int root) {
  const int world_size = static_cast<int>(plans.size());
  check_root(root, world_size);
  const Contract contract(collective, world_size, plans[0].num_chunks, root);
  check_bounds(contract, plans);
  if (collective != Collective::kAllReduce)
    return std::nullopt;  // no chunk is summed for two ranks
  const Traffic traffic = match(
      world_size, [&](int rank) { return plans[rank]; }, [](const Transfer&) { return true; });
  Sums sums;
  const Followed followed = Followed::all(contract.num_chunks());
  Rendezvous rendezvous(contract, traffic.pairings, followed, sums);
  rendezvous.run();
  for (int chunk = 0; chunk < contract.num_chunks(); ++chunk) {
    const Symbol first = rendezvous.contents(0, chunk);
    for (int rank = 1; rank < world_size; ++rank) {
      const Symbol other = rendezvous.contents(rank, chunk);
      if (first == other) continue;
      return BitwiseDifference{chunk, {0, rank}, {sums.to_string(first), sums.to_string(other)}};
    }
  }
  return std::nullopt;
}

}  // namespace ringcomm
