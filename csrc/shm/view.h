// A group as a program outside sees it: read from its memory, and never written.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/policy.h"
#include "core/process.h"
#include "plan/collective.h"
#include "setup/group_config.h"
#include "shm/layout.h"

namespace ringcomm::shm {

struct DurationsView {
  std::array<std::uint64_t, Durations::kBuckets> counts;
  double seconds;  // altogether
};

// Those of a collective that the rank has called.
struct CollectiveTimesView {
  Collective collective;
  DurationsView waited, transferred;
};

struct RankView {
  int rank;
  std::uint64_t global_rank;
  Process process;
  std::string host;
  std::string state;        // "running", "stopped", "silent", "ended", "left", "joining"
  std::string doing;        // "all_reduce(count=256, dtype=float32, op=sum) #17", or empty
  int waits_for;            // a rank of the group, or -1
  double waits;             // seconds, or 0
  std::uint64_t completed;  // collectives
  std::uint64_t enqueued_on_device, completed_on_device;
  std::uint64_t nbytes;          // of its tensors in collectives, so far
  std::uint64_t held;            // bytes of shared memory
  std::uint64_t held_on_device;  // bytes, besides those of NCCL
  std::vector<CollectiveTimesView> times;
};

struct GroupView {
  std::string name;
  bool complete;        // all ranks have joined
  std::string failure;  // why the group is broken, or empty
  std::vector<RankView> ranks;
  // Once it is complete:
  std::vector<int> host_of;    // the number of each rank's host
  InterHostConfig inter_host;  // means nothing on one host
  // Once it can be used; on each host, what its first rank knows:
  std::string tuned_by;  // the file of the tuning that it uses, or empty
  Reproducible reproducible;
  std::vector<SizeClass> size_classes;
};

// Reads the group whose memory the open file is. Throws Error (kSystem) if it is no group of this
// build.
GroupView view(int descriptor);

}  // namespace ringcomm::shm
