// What is faster across hosts, by what their network is.
#pragma once

#include "plan/network.h"

namespace ringcomm {

// An all-reduce goes by plan/hierarchical.h, which moves the least, or by
// plan/hierarchical_doubling.h, which takes the fewest latencies. Up to how many bytes in each
// column of the grid doubling is not slower, as simulated among one rank of each host: infinity for
// two hosts, which send as much either way. Throws std::invalid_argument for what plan/network.h
// does not allow.
double doubling_pays_up_to(int num_hosts, const Link& across);

// What each rank holds may go to all other hosts at once, or its part of the work once that of all
// is known to be the same, which is a crossing later. Up to how many bytes of a rank the former
// takes no longer: as long as a host's card sends what its ranks hold, to all other hosts, within
// the time of a crossing.
double one_shot_pays_up_to(int num_hosts, int ranks_per_host, const Link& across);

}  // namespace ringcomm
