// How the ranks of a group come into shared memory, each into that of its host, and find out which
// ranks are on which host, and what carries bytes between the hosts: of what the first rank of each
// can use, the first that all can.
//
// Rank 0 waits until all have come (setup/bootstrap.h). It guesses which ranks share memory, and
// sends that to all (setup/host_assignment.h). Now the first rank of each host makes a file and
// publishes its address to the others of its host, which open it, map it and report that in it
// (shm/segment_setup.h). The first rank sends the outcome to rank 0, which repeats this until all
// ranks of each host are in one file. Then rank 0 broadcasts that the group is made, and the first
// ranks write it to the files.
//
//   rank 0              the first of a host        the others
//   broadcast: HostAssignment
//                       published: address, cookie
//                                                  RankState::joined; or
//                                                  message: out of reach
//                       message: outcome
//   broadcast: HostAssignment
//                       GroupHeader::setup: again
//   ...
//   broadcast: made     GroupHeader::setup: made
//                                                  RankState::left
//                       left
//   erases all          GroupHeader::setup: done
//
// A rank that cannot be in the group by its own fault, and one that sees that another has ended,
// sends that to rank 0, which refuses the group to all. So it is made everywhere or nowhere: what
// rank 0 has broadcast counts, and a rank that misses the first of its host reads the broadcasts.
#pragma once

#include "core/group.h"
#include "setup/group_config.h"
#include "setup/store.h"

namespace ringcomm::shm {

class Segment;

struct MadeGroup {
  Placement placement;
  InterHostConfig inter_host;  // what the ranks use between their hosts
};

// Returns when all ranks of the group are in their places, this one's in the segment, which has no
// memory before. Throws Error otherwise.
MadeGroup make_group(Segment& segment, Store& store, const GroupConfig& config);

}  // namespace ringcomm::shm
