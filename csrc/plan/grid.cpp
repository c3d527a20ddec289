#include "plan/grid.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "plan/arguments.h"

namespace ringcomm {
namespace {

// The transfers of sorted chunks with one peer; neighbouring chunks go together.
std::vector<Transfer> transfers(const std::vector<int>& chunks, int peer, bool reduce) {
  std::vector<Transfer> result;
  for (const int chunk : chunks) {
    if (!result.empty() && result.back().first_chunk + result.back().num_chunks == chunk) {
      ++result.back().num_chunks;
    } else {
      result.push_back({peer, chunk, 1, reduce});
    }
  }
  return result;
}

// Where `size` ranks stand in for all columns: what belongs to those of one.
std::vector<int> chunks_of(const Columns& columns, int local, int size) {
  std::vector<int> result;
  for (int column = local; column < std::ssize(columns); column += size) {
    result.insert(result.end(), columns[column].begin(), columns[column].end());
  }
  std::ranges::sort(result);
  return result;
}

void append(std::vector<Transfer>& transfers, const std::vector<Transfer>& more) {
  transfers.insert(transfers.end(), more.begin(), more.end());
}

std::vector<Step> around_ring(int rank, const Grid& grid, const Columns& columns, bool reduce) {
  const auto [host, local] = grid.position(rank);
  const int size = grid.host_size(host);
  const int next = grid.rank_at(host, local + 1);
  const int prev = grid.rank_at(host, local - 1 + size);
  std::vector<Step> steps;
  int sent = reduce ? (local - 1 + size) % size : local;
  for (int i = 0; i < size - 1; ++i) {
    const int received = (sent - 1 + size) % size;
    steps.push_back({.sends = transfers(chunks_of(columns, sent, size), next, /*reduce=*/false),
                     .recvs = transfers(chunks_of(columns, received, size), prev, reduce)});
    sent = received;
  }
  return steps;
}

// Sends begin with the next rank, so that not all turn to the first one.
std::vector<Step> exchange(int rank, const Grid& grid, const Columns& columns, bool reduce) {
  const auto [host, local] = grid.position(rank);
  const int size = grid.host_size(host);
  const auto chunks_of_rank = [&](int owner) { return chunks_of(columns, owner, size); };
  Step step;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = (local + distance) % size;
    append(step.sends, transfers(chunks_of_rank(reduce ? peer : local), grid.rank_at(host, peer),
                                 /*reduce=*/false));
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer == local) continue;
    append(step.recvs,
           transfers(chunks_of_rank(reduce ? local : peer), grid.rank_at(host, peer), reduce));
  }
  return {step};
}

Plan inside_host(int rank, const Grid& grid, const Columns& columns, Inside inside, bool reduce) {
  Plan plan;
  for (const std::vector<int>& chunks : columns) plan.num_chunks += static_cast<int>(chunks.size());
  plan.steps = inside == Inside::kRing ? around_ring(rank, grid, columns, reduce)
                                       : exchange(rank, grid, columns, reduce);
  plan.steps.resize(steps_inside_hosts(grid, inside));
  return plan;
}

}  // namespace

Grid::Grid(int world_size, const std::vector<int>& host_of) {
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

Plan reduce_scatter_inside_host(int rank, const Grid& grid, const Columns& columns, Inside inside) {
  return inside_host(rank, grid, columns, inside, /*reduce=*/true);
}

Plan all_gather_inside_host(int rank, const Grid& grid, const Columns& columns, Inside inside) {
  return inside_host(rank, grid, columns, inside, /*reduce=*/false);
}

int steps_inside_hosts(const Grid& grid, Inside inside) {
  const int others = grid.num_columns() - 1;
  return inside == Inside::kRing ? others : std::min(others, 1);
}

}  // namespace ringcomm
