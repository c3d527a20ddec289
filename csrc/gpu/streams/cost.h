// What a collective costs the host: the calls that it makes, and an estimate of what each costs.
// They are counted without a device: the executor runs, and its calls do nothing but count.
//
//      host seconds  =  kCallSeconds  +  sum over the calls of  number * seconds
//
// The seconds are estimates, not measured: a kernel's launch as users report it for H100, the
// others from reading NCCL 2.28 to 2.32 and adding up what it calls. Everything is enqueued, so
// this is how long a collective takes at least; it takes as long as its bytes if these take longer.
#pragma once

#include <cstddef>
#include <string>

#include "plan/collective.h"
#include "reduce/types.h"

namespace ringcomm::streams {

// The calls of one rank.
struct Calls {
  int groups = 0;
  int launches = 0;  // communicators in each group, summed: NCCL launches a kernel for each
  int sends = 0, recvs = 0;
  int reductions = 0;  // kernels
  int copies = 0;
  int records = 0, waits = 0;  // of events

  bool operator==(const Calls&) const = default;
};

// The part of a collective that is not counted: it checks arguments, announces the call to the
// ranks, makes the caller's stream and the group's wait for each other, and adds the call to the
// watchdog.
inline constexpr double kCallSeconds = 15e-6;
// One communicator's part of a group, with its messages. NCCL makes two queries about capture, two
// records, two waits and a launch.
inline constexpr double kLaunchSeconds = 7e-6;
inline constexpr double kReductionSeconds = 3.5e-6;
inline constexpr double kCopySeconds = 3.5e-6;
inline constexpr double kEventSeconds = 0.5e-6;  // a record or a wait

constexpr double host_seconds(const Calls& calls) {
  return kCallSeconds + kLaunchSeconds * calls.launches + kReductionSeconds * calls.reductions +
         kCopySeconds * calls.copies + kEventSeconds * (calls.records + calls.waits);
}

// The bytes that one rank sends in a second over NVSwitch. An H100's links carry 450e9 at most.
inline constexpr double kWireBandwidth = 400e9;

// Cutting is worth it for slices that take longer on the wire than a slice's calls on the host: a
// launch, a sum, and for each of the two to wait for the other a record and a wait.
inline constexpr double kSliceSeconds = kLaunchSeconds + kReductionSeconds + 4 * kEventSeconds;
inline constexpr std::size_t kMinSliceNbytes =
    static_cast<std::size_t>(kSliceSeconds * kWireBandwidth);

struct Layout;  // gpu/streams/layout.h

// A collective on one rank. The count is that of the largest buffer of a rank: what reduce-scatter
// and scatter begin with, what all-gather and gather end with, what one rank has for all others in
// an all-to-all. It must be a multiple of world_size where ranks have shares of it.
struct Workload {
  Collective collective;
  std::string algorithm = "auto";
  int world_size;
  int rank = 0;
  int root = 0;
  std::size_t count;  // elements
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

// All-reduce, reduce and broadcast are in place, the others go from one buffer to another. Throws
// Error if the collective itself would.
Calls count_calls(const Workload& workload, const Layout& layout);

}  // namespace ringcomm::streams
