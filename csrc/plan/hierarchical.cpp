#include "plan/hierarchical.h"

#include <vector>

#include "plan/arguments.h"
#include "plan/compose.h"
#include "plan/grid.h"

namespace ringcomm {
namespace {

// The chunk that a rank owns, by host and place on it.
using Owned = std::vector<std::vector<int>>;

Owned by_rank(const Grid& grid) { return grid.ranks(); }

// Those of a column one after the other.
Owned by_column(const Grid& grid) {
  Owned owned(grid.num_hosts());
  int chunk = 0;
  for (int column = 0; column < grid.num_columns(); ++column) {
    for (int host = 0; host < grid.num_hosts(); ++host) {
      if (column < grid.host_size(host)) owned[host].push_back(chunk++);
    }
  }
  return owned;
}

Columns columns_of(const Grid& grid, const Owned& owned) {
  Columns columns(grid.num_columns());
  for (const std::vector<int>& chunks : owned) {
    for (std::size_t column = 0; column < chunks.size(); ++column) {
      columns[column].push_back(chunks[column]);
    }
  }
  return columns;
}

// plan/ring.h's reduce-scatter (reduce) or all-gather in the columns in which the rank stands.
Plan across_hosts(int rank, const Grid& grid, const Owned& owned, bool reduce) {
  const auto [host, local] = grid.position(rank);
  const int stride = grid.host_size(host);
  const auto with = [&, local = local](int other, int owner, bool reduce) {
    std::vector<Transfer> result;
    for (int column = local; column < std::ssize(owned[owner]); column += stride) {
      result.push_back({grid.rank_at(other, column), owned[owner][column], 1, reduce});
    }
    return result;
  };
  Plan plan{.num_chunks = grid.world_size(), .steps = {}};
  const int size = grid.num_hosts();
  int sent = reduce ? (host - 1 + size) % size : host;
  for (int step = 0; step < size - 1; ++step) {
    const int received = (sent - 1 + size) % size;
    plan.steps.push_back({.sends = with((host + 1) % size, sent, /*reduce=*/false),
                          .recvs = with((host - 1 + size) % size, received, reduce)});
    sent = received;
  }
  return plan;
}

Plan reduce_scatter(int rank, const Grid& grid, const Owned& owned, Inside inside) {
  return then(reduce_scatter_inside_host(rank, grid, columns_of(grid, owned), inside),
              across_hosts(rank, grid, owned, /*reduce=*/true));
}

Plan all_gather(int rank, const Grid& grid, const Owned& owned, Inside inside) {
  return then(across_hosts(rank, grid, owned, /*reduce=*/false),
              all_gather_inside_host(rank, grid, columns_of(grid, owned), inside));
}

Plan all_reduce(int rank, const Grid& grid, Inside inside) {
  const Owned owned = by_column(grid);
  return then(reduce_scatter(rank, grid, owned, inside), all_gather(rank, grid, owned, inside));
}

std::vector<Phase> reduce_scatter_phases(const Grid& grid, Inside inside) {
  return {{"inside hosts", steps_inside_hosts(grid, inside)},
          {"across hosts", grid.num_hosts() - 1}};
}

std::vector<Phase> all_gather_phases(const Grid& grid, Inside inside) {
  return {{"across hosts", grid.num_hosts() - 1},
          {"inside hosts", steps_inside_hosts(grid, inside)}};
}

std::vector<Phase> all_reduce_phases(const Grid& grid, Inside inside) {
  const int across = grid.num_hosts() - 1;
  return {{"reduce-scatter inside hosts", steps_inside_hosts(grid, inside)},
          {"reduce-scatter across hosts", across},
          {"all-gather across hosts", across},
          {"all-gather inside hosts", steps_inside_hosts(grid, inside)}};
}

Grid checked_grid(int rank, int world_size, const std::vector<int>& host_of) {
  check_rank(rank, world_size);
  return Grid(world_size, host_of);
}

}  // namespace

Plan hierarchical_reduce_scatter(int rank, int world_size, const std::vector<int>& host_of) {
  const Grid grid = checked_grid(rank, world_size, host_of);
  return reduce_scatter(rank, grid, by_rank(grid), Inside::kRing);
}

std::vector<Phase> hierarchical_reduce_scatter_phases(int world_size,
                                                      const std::vector<int>& host_of) {
  return reduce_scatter_phases(Grid(world_size, host_of), Inside::kRing);
}

Plan hierarchical_all_gather(int rank, int world_size, const std::vector<int>& host_of) {
  const Grid grid = checked_grid(rank, world_size, host_of);
  return all_gather(rank, grid, by_rank(grid), Inside::kRing);
}

std::vector<Phase> hierarchical_all_gather_phases(int world_size, const std::vector<int>& host_of) {
  return all_gather_phases(Grid(world_size, host_of), Inside::kRing);
}

Plan hierarchical_all_reduce(int rank, int world_size, const std::vector<int>& host_of) {
  return all_reduce(rank, checked_grid(rank, world_size, host_of), Inside::kRing);
}

std::vector<Phase> hierarchical_all_reduce_phases(int world_size, const std::vector<int>& host_of) {
  return all_reduce_phases(Grid(world_size, host_of), Inside::kRing);
}

Plan hierarchical_direct_reduce_scatter(int rank, int world_size, const std::vector<int>& host_of) {
  const Grid grid = checked_grid(rank, world_size, host_of);
  return reduce_scatter(rank, grid, by_rank(grid), Inside::kDirect);
}

std::vector<Phase> hierarchical_direct_reduce_scatter_phases(int world_size,
                                                             const std::vector<int>& host_of) {
  return reduce_scatter_phases(Grid(world_size, host_of), Inside::kDirect);
}

Plan hierarchical_direct_all_gather(int rank, int world_size, const std::vector<int>& host_of) {
  const Grid grid = checked_grid(rank, world_size, host_of);
  return all_gather(rank, grid, by_rank(grid), Inside::kDirect);
}

std::vector<Phase> hierarchical_direct_all_gather_phases(int world_size,
                                                         const std::vector<int>& host_of) {
  return all_gather_phases(Grid(world_size, host_of), Inside::kDirect);
}

Plan hierarchical_direct_all_reduce(int rank, int world_size, const std::vector<int>& host_of) {
  return all_reduce(rank, checked_grid(rank, world_size, host_of), Inside::kDirect);
}

std::vector<Phase> hierarchical_direct_all_reduce_phases(int world_size,
                                                         const std::vector<int>& host_of) {
  return all_reduce_phases(Grid(world_size, host_of), Inside::kDirect);
}

}  // namespace ringcomm
