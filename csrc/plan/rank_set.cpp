#include "plan/rank_set.h"

#include <algorithm>

namespace ringcomm {

RankSet RankSet::range(int first, int last) {
  RankSet set;
  if (first < last) set.ranges_.push_back({first, last});
  return set;
}

std::uint64_t RankSet::hash() const {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t hash = ranges_.size();
  for (const Range& range : ranges_) {
    const auto first = static_cast<std::uint64_t>(range.first);
    hash = (hash ^ (first << 32 | static_cast<std::uint32_t>(range.last))) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

RankSet RankSet::united_with(const RankSet& other) const {
  RankSet result;
  result.ranges_.reserve(ranges_.size() + other.ranges_.size());
  auto append = [&](const Range& range) {
    if (result.ranges_.empty() || result.ranges_.back().last < range.first) {
      result.ranges_.push_back(range);
    } else {
      result.ranges_.back().last = std::max(result.ranges_.back().last, range.last);
    }
  };
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() || theirs != other.ranges_.end()) {
    const bool take_mine =
        theirs == other.ranges_.end() || (mine != ranges_.end() && mine->first <= theirs->first);
    append(take_mine ? *mine++ : *theirs++);
  }
  return result;
}

std::optional<int> RankSet::first_in_common(const RankSet& other) const {
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() && theirs != other.ranges_.end()) {
    const int first = std::max(mine->first, theirs->first);
    if (first < std::min(mine->last, theirs->last)) return first;
    mine->last < theirs->last ? ++mine : ++theirs;
  }
  return std::nullopt;
}

std::optional<int> RankSet::first_not_in(const RankSet& other) const {
  auto theirs = other.ranges_.begin();
  for (const Range& range : ranges_) {
    while (theirs != other.ranges_.end() && theirs->last <= range.first) ++theirs;
    if (theirs == other.ranges_.end() || range.first < theirs->first) return range.first;
    if (theirs->last < range.last) return theirs->last;
  }
  return std::nullopt;
}

std::string RankSet::to_string() const {
  if (ranges_.empty()) return "no rank";
  const bool one = ranges_.size() == 1 && ranges_[0].last == ranges_[0].first + 1;
  std::string text = one ? "rank " : "ranks ";
  for (const Range& range : ranges_) {
    if (&range != ranges_.data()) text += ", ";
    text += std::to_string(range.first);
    if (range.last > range.first + 1) text += "-" + std::to_string(range.last - 1);
  }
  return text;
}

}  // namespace ringcomm
