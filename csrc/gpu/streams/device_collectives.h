// The collectives on a device, and which plans they use there if nothing has been selected: the
// tables of defaults.
//
// A kernel (csrc/gpu/fused/) carries out a call of few bytes eagerly, whatever its plan is. The
// tables are for the other calls. Sums of floats of less than 4 bytes are rounded once, at every
// size.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>

#include "core/collectives.h"
#include "gpu/streams/device_options.h"

namespace ringcomm::streams {

// A line of the table for kernels. The first line of the collective that allows the sums, the ranks
// and the bytes is used. Collectives without a line have one algorithm.
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

// Which calls are kernels if all ranks reach each other's memory: calls of few bytes (eager), and
// the others (lanes). All other calls are messages.
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

// The same in words, and how to ask for something else. The log has it, and so has the doctor.
std::string describe(DeviceExecutor executor, bool auto_is_fused);

// Collectives on device memory. They are asynchronous: the methods enqueue their work, and the
// memory must stay until the work is done.
class DeviceCollectives : public ringcomm::Collectives {
 protected:
  using Collectives::Collectives;

 private:
  // Enqueues the program on the chunks. `call` has no sequence number yet.
  virtual void enqueue_program(Call call, const Program& program, std::span<const Chunk> chunks,
                               const Reduction& reduction, Timeout timeout) = 0;
  // The call's plan is refused: nothing is enqueued, and this announces the refusal to the other
  // ranks, if there are any.
  virtual void announce_refused(Call /*call*/, Timeout /*timeout*/) {}
  // Whether a call that is not eager is one kernel, and not messages. It is the same on all ranks.
  virtual bool goes_by_kernels() const { return false; }

  AlgorithmFamily family_of(Collective collective, std::size_t count, DType dtype) const override;
  void carry_out(Call call, const Reduction& reduction, Timeout timeout) override;
};

}  // namespace ringcomm::streams
