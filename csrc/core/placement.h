// Which ranks of a group are on which host, that is, share memory.
#pragma once

#include <vector>

namespace ringcomm {

struct Placement {
  std::vector<int> host_of = {};  // by rank; hosts are numbered in the order of their first ranks

  // Of `world_size` ranks on one host.
  static Placement one_host(int world_size) { return {std::vector<int>(world_size, 0)}; }
  // As told by any numbers or names that are the same for ranks of one host.
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
