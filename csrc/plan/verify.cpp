#include "plan/verify.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "plan/arguments.h"
#include "plan/rendezvous.h"

namespace ringcomm {
namespace {

void verify_followed(Collective collective, int world_size,
                     const std::function<Plan(int rank)>& plan_of,
                     const std::function<bool(const Transfer&)>& follows_transfer,
                     const std::function<bool(int chunk)>& follows_chunk, int root) {
  const Traffic traffic = match(world_size, plan_of, follows_transfer);
  const Contract contract(collective, world_size, traffic.num_chunks, root);
  Rendezvous rendezvous(contract, world_size, traffic.pairings, follows_chunk);
  rendezvous.run();
  for (int rank = 0; rank < world_size; ++rank) {
    for (const int chunk : contract.promised_chunks(rank)) {
      if (!follows_chunk(chunk)) continue;
      const RankSet holds = rendezvous.contents(rank, chunk);
      const RankSet promised = contract.after(chunk);
      if (holds == promised) continue;
      if (collective == Collective::kBarrier) {
        throw PlanError("rank " + std::to_string(rank) + " leaves the barrier without knowing of " +
                        "rank " + std::to_string(*promised.first_not_in(holds)));
      }
      throw PlanError("rank " + std::to_string(rank) + " ends with " +
                      (holds.empty() ? "nothing" : "the contributions of " + holds.to_string()) +
                      " in chunk " + std::to_string(chunk) + ", and " + to_string(collective) +
                      " promises " + promised.to_string());
    }
  }
}

}  // namespace

void verify(Collective collective, const std::vector<Plan>& plans, int root) {
  verify_followed(
      collective, static_cast<int>(plans.size()), [&](int rank) { return plans[rank]; },
      [](const Transfer&) { return true; }, [](int) { return true; }, root);
}

void verify_chunks(Collective collective, int world_size,
                   const std::function<Plan(int rank)>& plan_of, std::vector<int> chunks,
                   int root) {
  check_root(root, world_size);
  std::ranges::sort(chunks);
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
  verify_followed(
      collective, world_size, plan_of, follows_transfer,
      [&](int chunk) { return std::ranges::binary_search(chunks, chunk); }, root);
}

}  // namespace ringcomm
