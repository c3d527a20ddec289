// The hierarchical plans: rings inside the hosts, or direct exchange, and rings across them.
//
// A ring around all ranks moves everything at the pace of its slowest link, the one between hosts.
// Here only what a host has already summed up crosses it. With H hosts of L ranks each, the ranks
// form a grid (plan/grid.h) whose rows and columns are rings, here of 2 hosts of 3 ranks:
//
//                 column 0      column 1      column 2
//
//      host 0       (0, 0) -----> (0, 1) -----> (0, 2) -----> back to (0, 0)
//                     |             |             |
//                     v             v             v
//      host 1       (1, 0) -----> (1, 1) -----> (1, 2) -----> back to (1, 0)
//                     |             |             |
//                     v             v             v
//                   (0, 0)        (0, 1)        (0, 2)
//
// Every rank owns one chunk, and column l moves those of the ranks (*, l). All-reduce is
// reduce-scatter, then all-gather, in four phases:
//
//      phase               ring of     steps    sends in each step
//
//      reduce-scatter      the host     L-1     one column's chunks, H of them
//      reduce-scatter      the column   H-1     one chunk of the own column
//      all-gather          the column   H-1     one chunk of the own column
//      all-gather          the host     L-1     one column's chunks, H of them
//
// Each phase is plan/ring.h's with another unit: position l of L with columns, then position h of H
// with the chunks of column l.
//
// Hosts of unequal sizes. In the columns that a host of s ranks lacks others of its ranks stand in,
// and own nothing there. So a ring inside a host has s positions, whose units are all the columns
// that a rank stands in for, and every column is a ring of H positions, some of which own no chunk
// and have none to send in the steps in which it would be theirs. With L for the largest host, a
// smaller one is idle in the last L-s steps of a phase inside hosts, so that all ranks begin the
// next phase together.
//
// Direct exchange inside hosts. Ranks that share memory, or a switch to which each has a link of
// its own, need no ring: in the plans that are called direct, the phases inside hosts are
// plan/direct.h's, with the same units. They take a step each, and 16-bit sums are rounded once in
// the first one instead of L-1 times.
//
// Invariant. After the first phase a rank holds the columns that it stands in, each summed over its
// host. After the second its own chunk is the sum over its column of such sums, hence over all
// ranks. After the third it holds its columns complete, after the fourth everything. Each chunk is
// summed along one path: all ranks end with the same bits.
//
// Cost of all-reduce on equal hosts, for nbytes on each rank:
//
//      inside a host    2 (L-1)/L * nbytes        in  2 (L-1)  latencies, direct: 2
//      across hosts     2 (H-1)/H * nbytes/L      in  2 (H-1)  latencies
//
// sent by each rank. Together that is the flat ring's volume, 2 (n-1)/n * nbytes, of which less
// than an L-th part crosses hosts, in 2 (H+L-2) instead of 2 (H*L-1) latencies. On unequal hosts
// the latencies are those of the largest, and of n ranks s on one host send (2n - s - s')/n *
// nbytes to the s' on the next one: a chunk is not summed beyond its owner, nor copied back to it.
//
// Which chunk does a rank own? An all-reduce is free to choose: chunks are numbered column by
// column, so that a column is one range. Reduce-scatter and all-gather promise chunk r to rank r,
// so that with L consecutive ranks on each host column l is the chunks l, L+l, 2L+l, ..., and a
// step inside the host sends H ranges.
//
// H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y. Kageyama: Massively distributed SGD:
// ImageNet/ResNet-50 training in a flash. arXiv:1811.05233, 2018 (there the "2D-torus all-reduce",
// on equal hosts).
#pragma once

#include <vector>

#include "plan/grid.h"
#include "plan/plan.h"

namespace ringcomm {

// The chunk that a rank owns, by host and place on it.
using Owned = std::vector<std::vector<int>>;

// Those of a column one after the other.
inline Owned by_column(const Grid& grid) {
  Owned owned(grid.num_hosts());
  int chunk = 0;
  for (int column = 0; column < grid.num_columns(); ++column) {
    for (int host = 0; host < grid.num_hosts(); ++host) {
      if (column < grid.host_size(host)) owned[host].push_back(chunk++);
    }
  }
  return owned;
}

inline Columns columns_of(const Grid& grid, const Owned& owned) {
  Columns columns(grid.num_columns());
  for (const std::vector<int>& chunks : owned) {
    for (std::size_t column = 0; column < chunks.size(); ++column) {
      columns[column].push_back(chunks[column]);
    }
  }
  return columns;
}

// The reduce-scatter, or the all-gather, in the columns in which the rank stands.
inline Plan across_hosts(int rank, const Grid& grid, const Owned& owned, bool reduce) {
  const auto [host, local] = grid.position(rank);
  const auto by_column = [&, first = local, stride = grid.host_size(host)](
                             const Transfer& transfer, std::vector<Transfer>& all) {
    const std::vector<int>& chunks = owned[transfer.first_chunk];
    for (int column = first; column < std::ssize(chunks); column += stride) {
      all.push_back({grid.rank_at(transfer.peer, column), chunks[column], 1, transfer.reduce});
    }
  };
  const auto ring = reduce ? ring_reduce_scatter : ring_all_gather;
  return translated(ring(host, grid.num_hosts()), grid.world_size(), by_column);
}

inline Plan reduce_scatter_on(const Grid& grid, int rank, const Owned& owned, Inside inside) {
  return then(inside_host(rank, grid, columns_of(grid, owned), inside, /*reduce=*/true),
              across_hosts(rank, grid, owned, /*reduce=*/true));
}

inline Plan all_gather_on(const Grid& grid, int rank, const Owned& owned, Inside inside) {
  return then(across_hosts(rank, grid, owned, /*reduce=*/false),
              inside_host(rank, grid, columns_of(grid, owned), inside, /*reduce=*/false));
}

// world_size chunks. host_of[r] is a number that rank r shares with those on its host and no
// others; empty, it says that all ranks share one host. Throw std::invalid_argument for a host_of
// that is neither empty nor one number per rank.

// Before: all chunks on every rank. After: chunk r on rank r is the sum, the others are partial.
inline Plan hierarchical_reduce_scatter(int rank, int world_size, const std::vector<int>& host_of,
                                        Inside inside = Inside::kRing) {
  const Grid grid(world_size, host_of);
  return reduce_scatter_on(grid, rank, grid.ranks(), inside);
}

// Before: chunk r on rank r. After: all chunks on every rank.
inline Plan hierarchical_all_gather(int rank, int world_size, const std::vector<int>& host_of,
                                    Inside inside = Inside::kRing) {
  const Grid grid(world_size, host_of);
  return all_gather_on(grid, rank, grid.ranks(), inside);
}

// The four phases, with columns of consecutive chunks.
inline Plan hierarchical_all_reduce(int rank, int world_size, const std::vector<int>& host_of,
                                    Inside inside = Inside::kRing) {
  const Grid grid(world_size, host_of);
  const Owned owned = by_column(grid);
  return then(reduce_scatter_on(grid, rank, owned, inside),
              all_gather_on(grid, rank, owned, inside));
}

inline std::vector<Phase> hierarchical_reduce_scatter_phases(int world_size,
                                                             const std::vector<int>& host_of,
                                                             Inside inside) {
  const Grid grid(world_size, host_of);
  return {{"inside hosts", steps_inside_hosts(grid, inside)},
          {"across hosts", grid.num_hosts() - 1}};
}

inline std::vector<Phase> hierarchical_all_gather_phases(int world_size,
                                                         const std::vector<int>& host_of,
                                                         Inside inside) {
  const Grid grid(world_size, host_of);
  return {{"across hosts", grid.num_hosts() - 1},
          {"inside hosts", steps_inside_hosts(grid, inside)}};
}

inline std::vector<Phase> hierarchical_all_reduce_phases(int world_size,
                                                         const std::vector<int>& host_of,
                                                         Inside inside) {
  const Grid grid(world_size, host_of);
  const int steps_inside = steps_inside_hosts(grid, inside);
  const int steps_across = grid.num_hosts() - 1;
  return {{"reduce-scatter inside hosts", steps_inside},
          {"reduce-scatter across hosts", steps_across},
          {"all-gather across hosts", steps_across},
          {"all-gather inside hosts", steps_inside}};
}

}  // namespace ringcomm
