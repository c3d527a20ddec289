#include "plan/between_hosts.h"

#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "plan/recursive_doubling.h"
#include "plan/ring.h"
#include "plan/simulate.h"

namespace ringcomm {
namespace {

constexpr double kReduceBandwidth = 5e9;  // of a core, roughly
constexpr double kLeast = 1024, kMost = double{1ull << 40};
// The time that ranks of two hosts need to send and receive a message, besides the network's
// latency.
constexpr double kCrossing = 50e-6;  // seconds

Simulator simulator(int num_hosts, const Link& across, Plan (*plan)(int rank, int world_size)) {
  const Network network{.ranks_per_host = 1,
                        .nics_per_host = 1,
                        .inside = across,
                        .across = across,
                        .reduce_bandwidth = kReduceBandwidth};
  std::vector<int> ranks(num_hosts);
  std::iota(ranks.begin(), ranks.end(), 0);
  return {num_hosts, [=](int rank) { return plan(rank, num_hosts); }, network, ranks};
}

}  // namespace

double doubling_pays_up_to(int num_hosts, const Link& across) {
  if (num_hosts <= 2) return std::numeric_limits<double>::infinity();
  const Simulator rings = simulator(num_hosts, across, ring_all_reduce);
  const Simulator doubling = simulator(num_hosts, across, recursive_doubling_all_reduce);
  double most = 0;
  for (double nbytes = kLeast; nbytes <= kMost; nbytes *= 2) {
    if (doubling.run(nbytes).seconds > rings.run(nbytes).seconds) break;
    most = nbytes;
  }
  return most;
}

double one_shot_pays_up_to(int num_hosts, int ranks_per_host, const Link& across) {
  return (across.latency + kCrossing) * across.bandwidth / (num_hosts - 1) / ranks_per_host;
}

}  // namespace ringcomm
