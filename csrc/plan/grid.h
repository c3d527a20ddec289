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
//
// Plans on the grid are plans of its rows and columns, translated: what a host or a position sends
// there, the ranks that stand there send here.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/direct.h"
#include "plan/plan.h"
#include "plan/ring.h"

namespace ringcomm {

class Grid {
 public:
  // host_of[r] is a number that rank r shares with those on its host and no others; empty, it says
  // that all ranks share one host. Throws std::invalid_argument for a world_size below 1, and a
  // host_of that is neither empty nor one number per rank.
  Grid(int world_size, const std::vector<int>& host_of) {
    check_rank(0, world_size);
    if (!host_of.empty() && std::ssize(host_of) != world_size) {
      throw std::invalid_argument("host_of must be empty or name the host of each of the " +
                                  std::to_string(world_size) + " ranks, got " +
                                  std::to_string(host_of.size()) + " hosts");
    }
    // Hosts are numbered in the order of their first ranks.
    std::unordered_map<int, int> numbers;
    for (int rank = 0; rank < world_size; ++rank) {
      const int name = host_of.empty() ? 0 : host_of[rank];
      const int host = numbers.try_emplace(name, std::ssize(numbers)).first->second;
      if (host == std::ssize(ranks_)) ranks_.emplace_back();
      positions_.push_back({host, static_cast<int>(ranks_[host].size())});
      ranks_[host].push_back(rank);
    }
    for (const std::vector<int>& ranks : ranks_) {
      num_columns_ = std::max(num_columns_, static_cast<int>(ranks.size()));
    }
  }

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

// The steps of a plan among others, with translate(transfer, all) for what adds the transfers that
// each of its transfers becomes.
template <typename Translate>
Plan translated(const Plan& plan, int num_chunks, const Translate& translate) {
  Plan result{.num_chunks = num_chunks, .steps = {}};
  for (const Step& step : plan.steps) {
    Step& all = result.steps.emplace_back();
    for (const Transfer& send : step.sends) translate(send, all.sends);
    for (const Transfer& recv : step.recvs) translate(recv, all.recvs);
  }
  return result;
}

// Chunks, by column.
using Columns = std::vector<std::vector<int>>;

// Whose reduce-scatter and all-gather the ranks of a host follow: plan/ring.h's, or
// plan/direct.h's, which takes one step and rounds once.
enum class Inside { kRing, kDirect };

// As many as on the largest host, so that all ranks end them together.
inline int steps_inside_hosts(const Grid& grid, Inside inside) {
  const int others = grid.num_columns() - 1;
  return inside == Inside::kRing ? others : std::min(others, 1);
}

// The chunks of all columns in which the rank at this position of its host stands, of `size` ranks.
inline std::vector<int> chunks_of(const Columns& columns, int local, int size) {
  std::vector<int> result;
  for (int column = local; column < std::ssize(columns); column += size) {
    result.insert(result.end(), columns[column].begin(), columns[column].end());
  }
  std::ranges::sort(result);
  return result;
}

// The reduce-scatter, or the all-gather, inside the rank's host: after the one, and before the
// other, a rank has all chunks of the columns in which it stands. Neighbouring chunks go together.
inline Plan inside_host(int rank, const Grid& grid, const Columns& columns, Inside inside,
                        bool reduce) {
  const Grid::Position place = grid.position(rank);
  const int size = grid.host_size(place.host);
  int num_chunks = 0;
  for (const std::vector<int>& chunks : columns) num_chunks += static_cast<int>(chunks.size());
  const auto with_chunks = [&](const Transfer& transfer, std::vector<Transfer>& all) {
    const int peer = grid.rank_at(place.host, transfer.peer);
    for (const int chunk : chunks_of(columns, transfer.first_chunk, size)) {
      if (!all.empty() && all.back().peer == peer &&
          all.back().first_chunk + all.back().num_chunks == chunk) {
        ++all.back().num_chunks;
      } else {
        all.push_back({peer, chunk, 1, transfer.reduce});
      }
    }
  };
  const auto by_ring = reduce ? ring_reduce_scatter : ring_all_gather;
  const auto direct = reduce ? direct_reduce_scatter : direct_all_gather;
  const Plan of_host = (inside == Inside::kRing ? by_ring : direct)(place.local, size);
  Plan plan = translated(of_host, num_chunks, with_chunks);
  plan.steps.resize(steps_inside_hosts(grid, inside));
  return plan;
}

}  // namespace ringcomm
