// A set of ranks, as sorted, disjoint, non-adjacent ranges. Sums along a ring or within a host are
// one or two ranges however many ranks they span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringcomm {

class RankSet {
 public:
  RankSet() = default;

  // The ranks first, ..., last-1.
  static RankSet range(int first, int last);
  static RankSet single(int rank) { return range(rank, rank + 1); }

  bool empty() const { return ranges_.empty(); }
  std::size_t num_ranges() const { return ranges_.size(); }
  std::uint64_t hash() const;
  RankSet united_with(const RankSet& other) const;

  // The lowest rank in both sets; the lowest rank in this set and not in the other.
  std::optional<int> first_in_common(const RankSet& other) const;
  std::optional<int> first_not_in(const RankSet& other) const;

  // For example "ranks 0-3, 6"; "no rank".
  std::string to_string() const;

  bool operator==(const RankSet&) const = default;

 private:
  struct Range {
    int first;
    int last;  // one past the end

    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges_;
};

}  // namespace ringcomm
