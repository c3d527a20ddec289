#include "plan/hierarchical.h"

#include <utility>
#include <vector>

#include "plan/arguments.h"
#include "plan/compose.h"

namespace ringcomm {
namespace {

struct Range {
  int first_chunk;
  int num_chunks;
};

struct Grid {
  int hosts;
  int ranks_per_host;
  bool consecutive_parts;  // part l is one range; otherwise it is what the ranks (*, l) own

  int rank(int host, int local) const { return host * ranks_per_host + local; }

  int chunk(int host, int local) const {
    return consecutive_parts ? local * hosts + host : rank(host, local);
  }

  std::vector<Range> part(int local) const {
    if (consecutive_parts) return {{chunk(0, local), hosts}};
    std::vector<Range> ranges;
    ranges.reserve(hosts);
    for (int host = 0; host < hosts; ++host) ranges.push_back({chunk(host, local), 1});
    return ranges;
  }
};

std::vector<Transfer> transfers(const std::vector<Range>& ranges, int peer, bool reduce) {
  std::vector<Transfer> result;
  result.reserve(ranges.size());
  for (const Range& range : ranges) {
    result.push_back({peer, range.first_chunk, range.num_chunks, reduce});
  }
  return result;
}

// plan/ring.h's reduce-scatter (reduce) or all-gather, seen from `position` of `size`.
// rank_at(position) stands there, unit_of(position) is what ends up or starts there.
template <typename RankAt, typename UnitOf>
Plan ring_phase(int num_chunks, int position, int size, RankAt rank_at, UnitOf unit_of,
                bool reduce) {
  Plan plan{.num_chunks = num_chunks, .steps = {}};
  plan.steps.reserve(size - 1);
  const int next = rank_at((position + 1) % size);
  const int prev = rank_at((position - 1 + size) % size);
  int sent = reduce ? (position - 1 + size) % size : position;
  for (int step = 0; step < size - 1; ++step) {
    const int received = (sent - 1 + size) % size;
    plan.steps.push_back({.sends = transfers(unit_of(sent), next, /*reduce=*/false),
                          .recvs = transfers(unit_of(received), prev, reduce)});
    sent = received;
  }
  return plan;
}

Plan inside_host(int rank, const Grid& grid, bool reduce) {
  const int host = rank / grid.ranks_per_host;
  return ring_phase(
      grid.hosts * grid.ranks_per_host, rank % grid.ranks_per_host, grid.ranks_per_host,
      [&](int local) { return grid.rank(host, local); },
      [&](int local) { return grid.part(local); }, reduce);
}

Plan across_hosts(int rank, const Grid& grid, bool reduce) {
  const int local = rank % grid.ranks_per_host;
  return ring_phase(
      grid.hosts * grid.ranks_per_host, rank / grid.ranks_per_host, grid.hosts,
      [&](int host) { return grid.rank(host, local); },
      [&](int host) { return std::vector<Range>{{grid.chunk(host, local), 1}}; }, reduce);
}

Plan reduce_scatter(int rank, const Grid& grid) {
  return then(inside_host(rank, grid, /*reduce=*/true), across_hosts(rank, grid, /*reduce=*/true));
}

Plan all_gather(int rank, const Grid& grid) {
  return then(across_hosts(rank, grid, /*reduce=*/false),
              inside_host(rank, grid, /*reduce=*/false));
}

Grid checked_grid(int rank, int world_size, int ranks_per_host, bool consecutive_parts) {
  check_rank(rank, world_size);
  check_ranks_per_host(ranks_per_host, world_size);
  return {world_size / ranks_per_host, ranks_per_host, consecutive_parts};
}

}  // namespace

Plan hierarchical_reduce_scatter(int rank, int world_size, int ranks_per_host) {
  return reduce_scatter(rank, checked_grid(rank, world_size, ranks_per_host, false));
}

Plan hierarchical_all_gather(int rank, int world_size, int ranks_per_host) {
  return all_gather(rank, checked_grid(rank, world_size, ranks_per_host, false));
}

Plan hierarchical_all_reduce(int rank, int world_size, int ranks_per_host) {
  const Grid grid = checked_grid(rank, world_size, ranks_per_host, true);
  return then(reduce_scatter(rank, grid), all_gather(rank, grid));
}

}  // namespace ringcomm
