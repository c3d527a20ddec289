#include "plan/contributions.h"

#include <string>
#include <utility>

#include "plan/matching.h"

namespace ringcomm {
namespace {

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

}  // namespace

Symbol Contributions::input(int rank) {
  if (rank >= std::ssize(inputs_)) inputs_.resize(rank + 1, kNothing);
  if (inputs_[rank] == kNothing) inputs_[rank] = symbol_of(RankSet::single(rank));
  return inputs_[rank];
}

Symbol Contributions::symbol_of(RankSet set) {
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

Symbol Contributions::sum(const Addition& addition) {
  RankSet sum = set_of(addition.held);
  for (const Arrival& arrival : addition.added) {
    const RankSet& added = set_of(arrival.symbol);
    check_ranges(ranges_united_ += sum.num_ranges() + added.num_ranges(), kMostUnited);
    const auto twice = may_repeat_ ? std::nullopt : sum.first_in_common(added);
    if (twice) {
      throw PlanError(describe_place(addition.rank, addition.step) + "adds chunk " +
                      std::to_string(addition.chunk) + " from rank " +
                      std::to_string(arrival.sender) + ", which counts the contribution of rank " +
                      std::to_string(*twice) + " twice");
    }
    sum = sum.united_with(added);
  }
  return symbol_of(std::move(sum));
}

}  // namespace ringcomm
