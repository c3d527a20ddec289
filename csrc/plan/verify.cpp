#include "plan/verify.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "plan/arguments.h"
#include "plan/bounds.h"
#include "plan/contributions.h"
#include "plan/rendezvous.h"

namespace ringcomm {
namespace {

// A barrier has one chunk, which holds the ranks that have arrived.
Followed all_chunks(const Contract& contract) {
  return Followed::all(contract.collective() == Collective::kBarrier ? 1 : contract.num_chunks());
}

void verify_followed(const Contract& contract, const Traffic& traffic, const Followed& followed) {
  Contributions sets(/*may_repeat=*/contract.collective() == Collective::kBarrier);
  Rendezvous rendezvous(contract, traffic.pairings, followed, sets);
  rendezvous.run();
  std::vector<Symbol> promises;  // by place
  for (int place = 0; place < followed.size(); ++place) {
    promises.push_back(sets.symbol_of(contract.after(followed.chunk(place))));
  }
  for (int rank = 0; rank < contract.world_size(); ++rank) {
    for (const int chunk : contract.promised_chunks(rank)) {
      const int place = followed.place(chunk);
      if (place == followed.size() || followed.chunk(place) != chunk) continue;
      const Symbol promised = promises[place];
      if (rendezvous.contents(rank, place) == promised) continue;
      const RankSet& holds = sets.set_of(rendezvous.contents(rank, place));
      if (contract.collective() == Collective::kBarrier) {
        throw PlanError("rank " + std::to_string(rank) + " leaves the barrier without knowing of " +
                        "rank " + std::to_string(*sets.set_of(promised).first_not_in(holds)));
      }
      throw PlanError("rank " + std::to_string(rank) + " ends with " +
                      (holds.empty() ? "nothing" : "the contributions of " + holds.to_string()) +
                      " in chunk " + std::to_string(chunk) + ", and " +
                      to_string(contract.collective()) + " promises " +
                      sets.set_of(promised).to_string());
    }
  }
}

}  // namespace

void verify(Collective collective, const std::vector<Plan>& plans, int root) {
  const int world_size = static_cast<int>(plans.size());
  check_root(root, world_size);
  const Contract contract(collective, world_size, plans[0].num_chunks, root);
  check_bounds(contract, plans);
  const Traffic traffic = match(
      world_size, [&](int rank) { return plans[rank]; }, [](const Transfer&) { return true; });
  verify_followed(contract, traffic, all_chunks(contract));
}

void verify_chunks(Collective collective, int world_size,
                   const std::function<Plan(int rank)>& plan_of, std::vector<int> chunks,
                   int root) {
  check_root(root, world_size);
  std::ranges::sort(chunks);
  const auto again = std::ranges::unique(chunks);
  chunks.erase(again.begin(), again.end());
  const int num_chunks = plan_of(0).num_chunks;
  for (const int chunk : chunks) {
    if (chunk < 0 || chunk >= num_chunks) {
      throw std::invalid_argument("the plans have " + std::to_string(num_chunks) +
                                  " chunks, and chunk " + std::to_string(chunk) +
                                  " is not among them");
    }
  }
  const auto follows_transfer = [&](const Transfer& transfer) {
    const auto chunk = std::ranges::lower_bound(chunks, transfer.first_chunk);
    return chunk != chunks.end() &&
           *chunk < std::int64_t{transfer.first_chunk} + transfer.num_chunks;
  };
  const Traffic traffic = match(world_size, plan_of, follows_transfer);
  const Contract contract(collective, world_size, traffic.num_chunks, root);
  if (!chunks.empty()) verify_followed(contract, traffic, Followed::some(std::move(chunks)));
}

}  // namespace ringcomm
