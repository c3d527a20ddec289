// What a device's collectives go by where nothing has been selected: the tables of defaults.
//
// By a kernel (csrc/fused/) a call of few bytes goes eagerly, whatever its plan is. The tables are
// for the others. Where floats of less than 4 bytes are added, sums are rounded once, at every
// size.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>

#include "core/collectives.h"
#include "streams/device_options.h"

namespace ringcomm::streams {

// A line of the table for kernels: of those for the collective, the first that allows the sums, the
// ranks and the bytes counts. Collectives without a line have one algorithm.
struct KernelChoice {
  enum class Sums { kAny, kRoundedOnce };  // floats of less than 4 bytes
  static constexpr int kAllRanks = std::numeric_limits<int>::max();
  static constexpr std::size_t kAllSizes = std::numeric_limits<std::size_t>::max();

  Collective collective;
  Sums sums;
  int most_ranks;
  std::size_t most_nbytes;  // of the whole buffer
  AlgorithmFamily family;
};
std::span<const KernelChoice> kernel_choices();

AlgorithmFamily family_by_kernel(Collective collective, std::size_t count, DType dtype,
                                 int world_size);
AlgorithmFamily family_by_messages(Collective collective, std::size_t count, DType dtype,
                                   int world_size);

// What goes by kernels, where all ranks reach each other's memory: calls of few bytes, eagerly, and
// the others, in lanes. What does not goes as messages.
struct ByKernel {
  bool eager, lanes;

  bool operator==(const ByKernel&) const = default;
};
constexpr ByKernel by_kernel(DeviceExecutor executor, bool auto_is_fused) {
  switch (executor) {
    case DeviceExecutor::kAuto:  // lanes once they have been measured to be faster on several GPUs
      return {.eager = auto_is_fused, .lanes = false};
    case DeviceExecutor::kMessages:
      return {.eager = false, .lanes = false};
    case DeviceExecutor::kFused:
      return {.eager = true, .lanes = true};
  }
  return {};
}

// The same in words, and how to ask for something else: for the log, and for who asks.
std::string describe(DeviceExecutor executor, bool auto_is_fused);

}  // namespace ringcomm::streams
