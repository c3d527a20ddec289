// The network between ranks, and what is faster on it across hosts. plan/simulate.h says what its
// numbers mean.
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

// An all-reduce goes by plan/hierarchical.h, which moves the least, or by
// plan/hierarchical_doubling.h, which takes the fewest latencies. Up to how many bytes in each
// column of the grid doubling is not slower, as simulated among one rank of each host: infinity for
// two hosts, which send as much either way. Throws what check_network throws.
double doubling_pays_up_to(int num_hosts, const Link& across);

// What each rank holds may go to all other hosts at once, or its part of the work once that of all
// is known to be the same, which is a crossing later. Up to how many bytes of a rank the former
// takes no longer: as long as a host's card sends what its ranks hold, to all other hosts, within
// the time of a crossing.
double one_shot_pays_up_to(int num_hosts, int ranks_per_host, const Link& across);

}  // namespace ringcomm
