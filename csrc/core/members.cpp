#include "core/members.h"

#include <algorithm>

namespace ringcomm {
namespace {

template <typename Ranks>
std::string list(const Ranks& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

std::string Members::in_group(const std::vector<int>& ranks) const {
  const bool same = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return global(rank) == static_cast<std::uint64_t>(rank);
  });
  if (same) return "";
  return " (" + list(ranks) + " of " + (group.empty() ? "its group" : "group " + group) + ")";
}

std::optional<int> Members::find(std::uint64_t global_rank, int world_size) const {
  for (int rank = 0; rank < world_size; ++rank) {
    if (global(rank) == global_rank) return rank;
  }
  return std::nullopt;
}

std::string Members::name(int rank) const { return names({rank}); }

std::string Members::names(const std::vector<int>& ranks) const {
  std::vector<std::uint64_t> global_ones;
  for (const int rank : ranks) global_ones.push_back(global(rank));
  return list(global_ones) + in_group(ranks);
}

}  // namespace ringcomm
