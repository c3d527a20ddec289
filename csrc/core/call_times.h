// How long collectives took where they were measured, and so how long others will take.
//
// Between two sizes a call takes  latency + nbytes / bandwidth,  with the latency and the bandwidth
// of these two. A smaller one than was measured takes as long as the smallest, and a larger one has
// the largest one's bytes per second.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "plan/collective.h"

namespace ringcomm {

// One call among so many ranks. The bytes are those of the larger of a rank's two buffers.
struct MeasuredCall {
  std::int32_t world_size;
  Collective collective;
  std::uint64_t nbytes;
  double seconds;
};

class CallTimes {
 public:
  CallTimes() = default;
  explicit CallTimes(std::span<const MeasuredCall> measured);

  bool knows(int world_size) const;
  // Null: that collective was not measured among so many ranks.
  std::optional<double> seconds(int world_size, Collective collective, std::uint64_t nbytes) const;

 private:
  std::map<std::pair<int, Collective>, std::map<std::uint64_t, double>> measured_;
};

}  // namespace ringcomm
