// Recursive doubling across hosts: an all-reduce for hosts that are far.
//
// The hierarchical plans (plan/hierarchical.h) cross hosts twice around a ring, which moves the
// least and takes the most latencies. Here each column of the grid (plan/grid.h) does what
// plan/recursive_doubling.h does, and each row what plan/direct.h does. For 4 hosts of 2 ranks:
//
//                 column 0                          column 1
//
//      host 0       (0, 0) <--.  <-----.              (0, 1) <--.  <-----.
//                             |        |                        |        |
//      host 1       (1, 0) <--'  <--.  |              (1, 1) <--'  <--.  |
//                                   |  |                              |  |
//      host 2       (2, 0) <--.  <--|--'              (2, 1) <--.  <--|--'
//                             |     |                           |     |
//      host 3       (3, 0) <--'  <--'                 (3, 1) <--'  <--'
//
//                           step 0  step 1                    step 0  step 1
//
// There are as many chunks as columns, and three phases:
//
//      phase                  among          sends in each step
//
//      reduce-scatter         the host       all other columns' chunks
//      recursive doubling     the column     the column's chunk
//      all-gather             the host       the column's chunk, to all others
//
// A host that is smaller than the largest one lacks ranks in some columns. Its other ranks stand in
// for them: a rank does in a step what is to be done in all of its columns.
//
// Invariant. After the first phase a rank holds its columns' chunks, each summed over its host.
// Recursive doubling leaves the sum over the column, hence over all ranks, with the same bits on
// all of its ranks; all-gather copies.
//
// Cost on equal hosts, for nbytes on each rank, sent by each:
//
//      inside a host    2 (L-1)/L * nbytes        in  2        latencies
//      across hosts     log2 H * nbytes/L         in  log2 H   latencies
//
// and two latencies more across hosts where H is no power of two. Two hosts send what they send
// with rings, in one latency for two; of more hosts, only what is small is faster so
// (doubling_pays_up_to in plan/network.h).
#pragma once

#include <vector>

#include "plan/grid.h"
#include "plan/plan.h"
#include "plan/recursive_doubling.h"

namespace ringcomm {

// As many chunks as the largest host has ranks. host_of is as in plan/grid.h. Throws
// std::invalid_argument for a host_of that is wrong.
inline Plan hierarchical_doubling_all_reduce(int rank, int world_size,
                                             const std::vector<int>& host_of) {
  const Grid grid(world_size, host_of);
  const auto [host, local] = grid.position(rank);
  Columns columns;  // of one chunk each, numbered as they are
  for (int column = 0; column < grid.num_columns(); ++column) columns.push_back({column});
  const auto by_column = [&, first = local, stride = grid.host_size(host)](
                             const Transfer& transfer, std::vector<Transfer>& all) {
    for (int column = first; column < grid.num_columns(); column += stride) {
      all.push_back({grid.rank_at(transfer.peer, column), column, 1, transfer.reduce});
    }
  };
  const Plan across = translated(recursive_doubling_all_reduce(host, grid.num_hosts()),
                                 grid.num_columns(), by_column);
  return then(then(inside_host(rank, grid, columns, Inside::kDirect, /*reduce=*/true), across),
              inside_host(rank, grid, columns, Inside::kDirect, /*reduce=*/false));
}

inline std::vector<Phase> hierarchical_doubling_all_reduce_phases(int world_size,
                                                                  const std::vector<int>& host_of) {
  const Grid grid(world_size, host_of);
  std::vector<Phase> phases = recursive_doubling_all_reduce_phases(grid.num_hosts());
  const int inside = steps_inside_hosts(grid, Inside::kDirect);
  phases.insert(phases.begin(), {"reduce-scatter inside hosts", inside});
  phases.push_back({"all-gather inside hosts", inside});
  return phases;
}

}  // namespace ringcomm
