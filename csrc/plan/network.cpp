#include "plan/network.h"

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/recursive_doubling.h"
#include "plan/ring.h"
#include "plan/simulate.h"

namespace ringcomm {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& wanted, double value) {
  throw std::invalid_argument(name + " must be " + wanted + ", got " + std::to_string(value));
}

void check_link(const std::string& name, const Link& link) {
  for (const auto& [part, value] :
       {std::pair(".latency", link.latency), {".overhead", link.overhead}}) {
    if (!std::isfinite(value) || value < 0) refuse(name + part, "finite and at least 0", value);
  }
  if (!(link.bandwidth > 0)) refuse(name + ".bandwidth", "above 0", link.bandwidth);
}

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

void check_network(const Network& network, int world_size) {
  check_rank(0, world_size);
  if (network.ranks_per_host < 1 || world_size % network.ranks_per_host != 0) {
    throw std::invalid_argument("ranks_per_host must divide world_size, which is " +
                                std::to_string(world_size) + ", got " +
                                std::to_string(network.ranks_per_host));
  }
  if (network.nics_per_host < 1 || network.ranks_per_host % network.nics_per_host != 0) {
    throw std::invalid_argument("nics_per_host must divide ranks_per_host, which is " +
                                std::to_string(network.ranks_per_host) + ", got " +
                                std::to_string(network.nics_per_host));
  }
  check_link("inside", network.inside);
  check_link("across", network.across);
  for (const auto& [name, value] : {std::pair("reduce_bandwidth", network.reduce_bandwidth),
                                    {"egress", network.egress},
                                    {"ingress", network.ingress}}) {
    if (!(value > 0)) refuse(name, "above 0", value);
  }
}

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
