#include "core/call_times.h"

#include <algorithm>
#include <iterator>

namespace ringcomm {

CallTimes::CallTimes(std::span<const MeasuredCall> measured) {
  for (const MeasuredCall& call : measured) {
    measured_[{call.world_size, call.collective}][call.nbytes] = call.seconds;
  }
}

bool CallTimes::knows(int world_size) const {
  return std::ranges::any_of(measured_,
                             [&](const auto& of_one) { return of_one.first.first == world_size; });
}

std::optional<double> CallTimes::seconds(int world_size, Collective collective,
                                         std::uint64_t nbytes) const {
  const auto found = measured_.find({world_size, collective});
  if (found == measured_.end()) return std::nullopt;
  const auto& times = found->second;
  const auto above = times.lower_bound(nbytes);
  if (above == times.begin()) return above->second;
  const auto [size, before] = *std::prev(above);
  if (above == times.end()) {
    return size == 0 ? before : before * static_cast<double>(nbytes) / static_cast<double>(size);
  }
  const double part = static_cast<double>(nbytes - size) / static_cast<double>(above->first - size);
  return before + part * (above->second - before);
}

}  // namespace ringcomm
