// The members of a group, and where they are: the names of its ranks, and which of them share a
// host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringcomm {

// The ranks of a group as its users name them: by the ranks of the default group.
struct Members {
  std::string group = {};                        // its name, or empty
  std::vector<std::uint64_t> global_ranks = {};  // by rank; empty: they are the same

  std::uint64_t global(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return r < global_ranks.size() ? global_ranks[r] : r;
  }

  // The rank of this number there, if it is in the group.
  std::optional<int> find(std::uint64_t global_rank, int world_size) const;

  // "rank 2" if that is its number in the group, too, else "rank 2 (rank 1 of group tp)".
  std::string name(int rank) const;
  // "no rank", "rank 2", "ranks 0, 2 and 5", "ranks 2 and 3 (ranks 0 and 1 of group tp)"
  std::string names(const std::vector<int>& ranks) const;

 private:
  std::string in_group(const std::vector<int>& ranks) const;
};

// Which ranks of a group are on which host, that is, share memory.
struct Placement {
  std::vector<int> host_of = {};  // by rank; hosts are numbered in the order of their first ranks

  // The placement of `world_size` ranks on one host.
  static Placement one_host(int world_size) { return {std::vector<int>(world_size, 0)}; }
  // From any numbers or names that are the same for ranks of one host.
  template <typename Names>
  static Placement of(const Names& names);

  int num_hosts() const;
  bool together(int a, int b) const { return host_of[a] == host_of[b]; }
  // Whether there is such a rank, and on that host.
  bool is_on(int host, int rank) const;
  // Ascending. The first is the host's leader.
  std::vector<int> ranks_on(int host) const;
  int leader_of(int host) const;

  bool operator==(const Placement&) const = default;
};

template <typename Names>
Placement Placement::of(const Names& names) {
  Placement placement;
  std::vector<typename Names::value_type> known;
  for (const auto& name : names) {
    std::size_t host = 0;
    while (host < known.size() && !(known[host] == name)) ++host;
    if (host == known.size()) known.push_back(name);
    placement.host_of.push_back(static_cast<int>(host));
  }
  return placement;
}

}  // namespace ringcomm
