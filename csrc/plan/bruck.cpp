#include "plan/bruck.h"

#include <algorithm>
#include <vector>

#include "plan/arguments.h"

namespace ringcomm {
namespace {

// The chunks first, ..., first+count-1 modulo num_chunks, in one range or two.
std::vector<Transfer> around(int peer, int first, int count, int num_chunks) {
  const int before_end = std::min(count, num_chunks - first);
  std::vector<Transfer> result = {{peer, first, before_end}};
  if (before_end < count) result.push_back({peer, 0, count - before_end});
  return result;
}

}  // namespace

Plan bruck_all_gather(int rank, int world_size) {
  check_rank(rank, world_size);
  const int n = world_size;
  Plan plan{.num_chunks = n, .steps = {}};
  for (int distance = 1; distance < n; distance *= 2) {
    const int behind = (rank - distance + n) % n;
    const int ahead = (rank + distance) % n;
    const int count = std::min(distance, n - distance);
    plan.steps.push_back(
        {.sends = around(behind, rank, count, n), .recvs = around(ahead, ahead, count, n)});
  }
  return plan;
}

Plan bruck_all_to_all(int rank, int world_size) {
  check_rank(rank, world_size);
  check_square(world_size);
  const int n = world_size;
  Plan plan{.num_chunks = n * n, .steps = {}};
  for (int distance = 1; distance < n; distance *= 2) {
    const int behind = (rank - distance + n) % n;
    const int ahead = (rank + distance) % n;
    // What is on `holder` before this step and has `total` ranks to go from where it began.
    const auto chunk = [&](int holder, int total) {
      const int from = (holder - total % distance + n) % n;
      return from * n + (from + total) % n;
    };
    Step& step = plan.steps.emplace_back();
    for (int total = distance; total < n; ++total) {
      if (!(total & distance)) continue;
      step.sends.push_back({ahead, chunk(rank, total), 1});
      step.recvs.push_back({behind, chunk(behind, total), 1});
    }
  }
  return plan;
}

}  // namespace ringcomm
