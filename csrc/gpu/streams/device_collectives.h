// The collectives on a device: by messages, or as kernels. Which plans they use if nothing has been
// selected is decided in core/policy.h.
//
// A kernel (csrc/gpu/fused/) carries out a call of few bytes eagerly, whatever its plan is.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/collectives.h"
#include "core/policy.h"
#include "gpu/streams/device_options.h"

namespace ringcomm::streams {

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

  ExecutorKind executor_kind() const override {
    return goes_by_kernels() ? ExecutorKind::kFused : ExecutorKind::kMessages;
  }
  void carry_out(Call call, const Reduction& reduction, Timeout timeout) override;
};

}  // namespace ringcomm::streams
