#include "plan/verify.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "plan/rendezvous.h"

namespace ringcomm {
namespace {

constexpr std::int64_t kMostOfEach = std::int64_t{1} << 21;  // of each

std::int64_t num_messages(const std::vector<Transfer>& transfers) {
  std::int64_t sum = 0;
  for (const Transfer& transfer : transfers) sum += std::max(transfer.num_chunks, 1);
  return sum;
}

void check(std::int64_t number, const std::string& holder, const std::string& what,
           const std::string& advice) {
  if (number <= kMostOfEach) return;
  throw PlanError(holder + " " + std::to_string(number) + " " + what + ", and plans may have " +
                  std::to_string(kMostOfEach) + "; " + advice);
}

void check_values(const Contract& contract) {
  const std::int64_t promised = contract.num_promised();
  if (promised <= kMostOfEach) return;
  const std::int64_t most_chunks =
      contract.num_chunks() == 0 ? 0 : kMostOfEach / (promised / contract.num_chunks());
  check(promised,
        std::string(to_string(contract.collective())) + " of " +
            std::to_string(contract.num_chunks()) + " chunks among " +
            std::to_string(contract.world_size()) + " ranks has",
        "results",
        most_chunks > 0 ? "at most " + std::to_string(most_chunks) + " chunks would do"
                        : "fewer ranks would do");
}

constexpr std::uint64_t kMostUnited = std::uint64_t{1} << 28;
constexpr std::uint64_t kMostKept = std::uint64_t{1} << 24;

void check_ranges(std::uint64_t ranges, std::uint64_t most) {
  if (ranges <= most) return;
  throw PlanError(
      "the sums of these plans are of ranks too far from each other: to follow them "
      "takes more than " +
      std::to_string(most) +
      " ranges of ranks. Fewer ranks or chunks, or sums of consecutive ranks, would do");
}

// Symbols for sets of contributions: two of them can be added if they have no rank in common.
class Contributions : public Symbols {
 public:
  // may_repeat: a contribution may be counted twice, as in a barrier.
  explicit Contributions(bool may_repeat) : may_repeat_(may_repeat) {}

  Symbol input(int rank) override {
    if (rank >= std::ssize(inputs_)) inputs_.resize(rank + 1, kNothing);
    if (inputs_[rank] == kNothing) inputs_[rank] = symbol_of(RankSet::single(rank));
    return inputs_[rank];
  }

  // Throws PlanError also where the sets are too scattered to be united in a second: there may be
  // 2^28 ranges of ranks in all that are united, and 2^24 in those that differ, which take 256 MB.
  Symbol sum(const Addition& addition) override {
    RankSet sum = set_of(addition.held);
    for (const Arrival& arrival : addition.added) {
      const RankSet& added = set_of(arrival.symbol);
      check_ranges(ranges_united_ += sum.num_ranges() + added.num_ranges(), kMostUnited);
      const auto twice = may_repeat_ ? std::nullopt : sum.first_in_common(added);
      if (twice) {
        throw PlanError(
            describe_place(addition.rank, addition.step) + "adds chunk " +
            std::to_string(addition.chunk) + " from rank " + std::to_string(arrival.sender) +
            ", which counts the contribution of rank " + std::to_string(*twice) + " twice");
      }
      sum = sum.united_with(added);
    }
    return symbol_of(std::move(sum));
  }

  Symbol symbol_of(RankSet set) {
    if (set.empty()) return kNothing;
    const std::uint64_t hash = set.hash();
    const auto [begin, end] = symbols_.equal_range(hash);
    for (auto known = begin; known != end; ++known) {
      if (sets_[known->second] == set) return known->second;
    }
    check_ranges(ranges_kept_ += set.num_ranges(), kMostKept);
    const auto symbol = static_cast<Symbol>(sets_.size());
    sets_.push_back(std::move(set));
    symbols_.emplace(hash, symbol);
    return symbol;
  }

  const RankSet& set_of(Symbol symbol) const { return sets_[symbol]; }

 private:
  const bool may_repeat_;
  std::vector<RankSet> sets_{RankSet()};                    // by symbol
  std::unordered_multimap<std::uint64_t, Symbol> symbols_;  // by hash
  std::vector<Symbol> inputs_;                              // by rank
  std::uint64_t ranges_united_ = 0, ranges_kept_ = 0;
};

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

void check_bounds(const Contract& contract, const std::vector<Plan>& plans) {
  check_values(contract);
  std::int64_t num_steps = 0, num_sent = 0, num_received = 0;
  for (int rank = 0; rank < std::ssize(plans); ++rank) {
    const Plan& plan = plans[rank];
    check_plan(plan, rank, contract.world_size(), contract.num_chunks());
    num_steps += std::ssize(plan.steps);
    for (const Step& step : plan.steps) {
      num_sent += num_messages(step.sends);
      num_received += num_messages(step.recvs);
    }
  }
  check(num_steps, "the plans have", "steps", "fewer steps or ranks would do");
  for (const auto& [number, what] :
       {std::pair(num_sent, "chunks to send"), {num_received, "chunks to receive"}}) {
    check(number, "the plans have", what, "fewer and larger chunks, or fewer ranks, would do");
  }
}

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
