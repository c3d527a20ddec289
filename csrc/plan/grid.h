// Ranks on hosts as a grid: row h is host h, and (h, l) the l-th rank on it, in the order of ranks,
// wherever the ranks were placed.
//
// Hosts of unequal sizes leave gaps: a host with s ranks has none in the columns from s on. There
// its rank l mod s stands in for the missing l-th. With s = 2 on host 1:
//
//                 column 0    column 1    column 2
//
//      host 0      (0, 0)      (0, 1)      (0, 2)
//      host 1      (1, 0)      (1, 1)      (1, 0)
#pragma once

#include <vector>

#include "plan/plan.h"

namespace ringcomm {

class Grid {
 public:
  // host_of[r] is a number that rank r shares with those on its host and no others; empty, it says
  // that all ranks share one host. Throws std::invalid_argument for a world_size below 1, and a
  // host_of that is neither empty nor one number per rank.
  Grid(int world_size, const std::vector<int>& host_of);

  struct Position {
    int host;
    int local;
  };

  int world_size() const { return static_cast<int>(positions_.size()); }
  int num_hosts() const { return static_cast<int>(ranks_.size()); }
  int num_columns() const { return num_columns_; }
  int host_size(int host) const { return static_cast<int>(ranks_[host].size()); }
  Position position(int rank) const { return positions_[rank]; }

  // The rank at that position, or the one that stands in for it if the host has none there.
  int rank_at(int host, int column) const { return ranks_[host][column % host_size(host)]; }

  // By host and place on it.
  const std::vector<std::vector<int>>& ranks() const { return ranks_; }

 private:
  std::vector<std::vector<int>> ranks_;  // by host and place on it
  std::vector<Position> positions_;      // by rank
  int num_columns_ = 0;
};

// Chunks, by column.
using Columns = std::vector<std::vector<int>>;

// Whose reduce-scatter and all-gather the ranks of a host follow: plan/ring.h's, or
// plan/direct.h's, which takes one step and rounds once.
enum class Inside { kRing, kDirect };

// The two halves inside the rank's host, where position l of s has all chunks of the columns in
// which it stands: after the reduce-scatter, before the all-gather. They take as many steps as on
// the largest host, so that all ranks end them together.
Plan reduce_scatter_inside_host(int rank, const Grid& grid, const Columns& columns, Inside inside);
Plan all_gather_inside_host(int rank, const Grid& grid, const Columns& columns, Inside inside);
int steps_inside_hosts(const Grid& grid, Inside inside);

}  // namespace ringcomm
