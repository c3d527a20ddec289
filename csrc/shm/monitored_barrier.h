// A barrier led by rank 0, which can name the ranks that did not come.
//
// Every rank counts its monitored barriers. Rank r > 0 publishes the number it has arrived at and
// waits for rank 0 to release or to reject that number; rank 0 collects the arrivals first. Nothing
// else of the group is touched, so a barrier that fails does not break it.
#pragma once

#include <cstdint>

#include "core/deadline.h"
#include "shm/group.h"

namespace ringcomm::shm {

// `number` counts this rank's monitored barriers, from 1. Throws on every rank that came: on rank 0
// naming the ranks that did not (with wait_all_ranks all of them, otherwise one). kTimeout when the
// deadline has passed; kPeerDied as soon as one of them (with wait_all_ranks: every one) has left
// or died, and on the others when rank 0 has.
void monitored_barrier(Group& group, std::uint64_t number, bool wait_all_ranks,
                       const Deadline& deadline);

}  // namespace ringcomm::shm
