#include "core/group.h"

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

int Placement::num_hosts() const {
  return host_of.empty() ? 0 : *std::ranges::max_element(host_of) + 1;
}

bool Placement::is_on(int host, int rank) const {
  return rank >= 0 && rank < static_cast<int>(host_of.size()) && host_of[rank] == host;
}

std::vector<int> Placement::ranks_on(int host) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
    if (host_of[rank] == host) ranks.push_back(rank);
  }
  return ranks;
}

int Placement::leader_of(int host) const {
  return static_cast<int>(std::ranges::find(host_of, host) - host_of.begin());
}

}  // namespace ringcomm
