// Which all-reduce is faster across hosts: plan/hierarchical.h's, which moves the least, or
// plan/hierarchical_doubling.h's, which takes the fewest latencies.
#pragma once

#include "plan/network.h"

namespace ringcomm {

// Up to how many bytes in each column of the grid doubling is not slower, as simulated among one
// rank of each host: infinity for two hosts, which send as much either way. Throws
// std::invalid_argument for what plan/network.h does not allow.
double doubling_pays_up_to(int num_hosts, const Link& across);

}  // namespace ringcomm
