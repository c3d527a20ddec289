// The network that a simulation runs on; plan/simulate.h says what the numbers mean.
#pragma once

#include <algorithm>
#include <limits>

namespace ringcomm {

// Seconds and bytes per second.
struct Link {
  double latency = 0;
  double overhead = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
};

// Rank h*ranks_per_host + l is the l-th on host h. A host's ranks share its nics_per_host network
// cards evenly, consecutive ranks one card.
struct Network {
  int ranks_per_host = 1;
  int nics_per_host = 1;
  Link inside;  // between ranks of one host
  Link across;  // between hosts
  double reduce_bandwidth = std::numeric_limits<double>::infinity();
  // What a rank can send to, and receive from, all ranks of its host together.
  double egress = std::numeric_limits<double>::infinity();
  double ingress = std::numeric_limits<double>::infinity();

  // Whether messages inside hosts share these; otherwise they take turns at ports.
  bool shares() const {
    return std::min(egress, ingress) < std::numeric_limits<double>::infinity();
  }
};

// Throws std::invalid_argument unless ranks_per_host divides world_size and nics_per_host divides
// that, latency and overhead are finite and at least 0, and bandwidths are above 0.
void check_network(const Network& network, int world_size);

}  // namespace ringcomm
