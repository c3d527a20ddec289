// How long collectives took where they were measured, and so how long others will take.
//
// Between two sizes a call takes  latency + nbytes / bandwidth,  with the latency and the bandwidth
// of these two. A smaller one than was measured takes as long as the smallest, and a larger one has
// the largest one's bytes per second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
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
  explicit CallTimes(std::span<const MeasuredCall> measured) {
    for (const MeasuredCall& call : measured) {
      measured_[{call.world_size, call.collective}][call.nbytes] = call.seconds;
    }
  }

  bool knows(int world_size) const {
    return std::ranges::any_of(
        measured_, [&](const auto& of_one) { return of_one.first.first == world_size; });
  }

  // Null: that collective was not measured among so many ranks.
  std::optional<double> seconds(int world_size, Collective collective, std::uint64_t nbytes) const {
    const auto found = measured_.find({world_size, collective});
    if (found == measured_.end()) return std::nullopt;
    const auto& times = found->second;
    const auto above = times.lower_bound(nbytes);
    if (above == times.begin()) return above->second;
    const auto [size, before] = *std::prev(above);
    if (above == times.end()) {
      return size == 0 ? before : before * static_cast<double>(nbytes) / static_cast<double>(size);
    }
    const double part =
        static_cast<double>(nbytes - size) / static_cast<double>(above->first - size);
    return before + part * (above->second - before);
  }

 private:
  std::map<std::pair<int, Collective>, std::map<std::uint64_t, double>> measured_;
};

}  // namespace ringcomm
