// Symbols for sets of contributions: two of them can be added if they have no rank in common.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plan/rank_set.h"
#include "plan/symbols.h"

namespace ringcomm {

class Contributions : public Symbols {
 public:
  // may_repeat: a contribution may be counted twice, as in a barrier.
  explicit Contributions(bool may_repeat) : may_repeat_(may_repeat) {}

  Symbol input(int rank) override;
  // Throws PlanError also where the sets are too scattered to be united in a second: there may be
  // 2^28 ranges of ranks in all that are united, and 2^24 in those that differ, which take 256 MB.
  Symbol sum(const Addition& addition) override;

  Symbol symbol_of(RankSet set);
  const RankSet& set_of(Symbol symbol) const { return sets_[symbol]; }

 private:
  const bool may_repeat_;
  std::vector<RankSet> sets_{RankSet()};                    // by symbol
  std::unordered_multimap<std::uint64_t, Symbol> symbols_;  // by hash
  std::vector<Symbol> inputs_;                              // by rank
  std::uint64_t ranges_united_ = 0, ranges_kept_ = 0;
};

}  // namespace ringcomm
