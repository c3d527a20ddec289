#include "plan/hierarchical_doubling.h"

#include "plan/arguments.h"
#include "plan/compose.h"
#include "plan/grid.h"
#include "plan/recursive_doubling.h"

namespace ringcomm {
namespace {

// The columns' chunks are numbered as they are.
Columns columns_of(const Grid& grid) {
  Columns columns(grid.num_columns());
  for (int column = 0; column < grid.num_columns(); ++column) columns[column] = {column};
  return columns;
}

// One column's transfers, in which peers are hosts and the chunk is the only one, as the grid's.
std::vector<Transfer> in_grid(std::vector<Transfer> transfers, const Grid& grid, int column) {
  for (Transfer& transfer : transfers) {
    transfer.peer = grid.rank_at(transfer.peer, column);
    transfer.first_chunk = column;
  }
  return transfers;
}

Plan across_hosts(int rank, const Grid& grid) {
  const auto [host, local] = grid.position(rank);
  const Plan of_column = recursive_doubling_all_reduce(host, grid.num_hosts());
  Plan plan{.num_chunks = grid.num_columns(), .steps = {}};
  for (const Step& step : of_column.steps) {
    Step& all = plan.steps.emplace_back();
    for (int column = local; column < grid.num_columns(); column += grid.host_size(host)) {
      for (const Transfer& send : in_grid(step.sends, grid, column)) all.sends.push_back(send);
      for (const Transfer& recv : in_grid(step.recvs, grid, column)) all.recvs.push_back(recv);
    }
  }
  return plan;
}

}  // namespace

Plan hierarchical_doubling_all_reduce(int rank, int world_size, const std::vector<int>& host_of) {
  check_rank(rank, world_size);
  const Grid grid(world_size, host_of);
  const Columns columns = columns_of(grid);
  return then(then(reduce_scatter_inside_host(rank, grid, columns, Inside::kDirect),
                   across_hosts(rank, grid)),
              all_gather_inside_host(rank, grid, columns, Inside::kDirect));
}

std::vector<Phase> hierarchical_doubling_all_reduce_phases(int world_size,
                                                           const std::vector<int>& host_of) {
  const Grid grid(world_size, host_of);
  std::vector<Phase> phases = recursive_doubling_all_reduce_phases(grid.num_hosts());
  const int inside = steps_inside_hosts(grid, Inside::kDirect);
  phases.insert(phases.begin(), {"reduce-scatter inside hosts", inside});
  phases.push_back({"all-gather inside hosts", inside});
  return phases;
}

}  // namespace ringcomm
