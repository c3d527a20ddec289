// The collectives on a device, by messages or as kernels, and their options. Which plans they use
// if nothing has been selected is decided in core/policy.h.
//
// A kernel (csrc/gpu/fused/) carries out a call of few bytes eagerly, whatever its plan is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/collectives.h"
#include "core/policy.h"
#include "core/status.h"
#include "gpu/streams/layout.h"

namespace ringcomm::streams {

// How collectives are carried out on a device: as messages, each a call to NCCL, or as one kernel
// each, if all ranks are on one host and reach each other's memory. kAuto: see kAutoIsFused, and
// by_kernel() below.
enum class DeviceExecutor : std::uint8_t { kAuto, kMessages, kFused };

// "auto", "messages" or "fused". Throws Error (kInvalidArgument) for anything else.
inline DeviceExecutor executor_named(const std::string& name) {
  if (name == "auto") return DeviceExecutor::kAuto;
  if (name == "messages") return DeviceExecutor::kMessages;
  if (name == "fused") return DeviceExecutor::kFused;
  throw Error(ErrorKind::kInvalidArgument,
              "the executor is \"" + name + "\"; it must be auto, messages or fused");
}

// Whether kAuto uses kernels for the calls they are best at. It is off until a first run on several
// GPUs. RINGCOMM_EXECUTOR=fused asks for kernels by name.
inline constexpr bool kAutoIsFused = false;

// What happens when operations under way on a device fail after their callers have gone on: the
// process ends, or later calls raise the error.
enum class AsyncErrors : std::uint8_t { kExit, kRaise };

// "exit" or "raise". Throws Error (kInvalidArgument) for anything else.
inline AsyncErrors async_errors_named(const std::string& name) {
  if (name == "exit") return AsyncErrors::kExit;
  if (name == "raise") return AsyncErrors::kRaise;
  throw Error(ErrorKind::kInvalidArgument,
              "what asynchronous errors do is \"" + name + "\"; it must be exit or raise");
}

// The options of a group's part on a device. The initial values are the defaults, and are said only
// here.
struct DeviceOptions {
  Selection selection = {};
  AsyncErrors async_errors = AsyncErrors::kExit;
  DeviceExecutor executor = DeviceExecutor::kAuto;
  bool auto_is_fused = kAutoIsFused;
  Layout layout;
  // Bytes of one lane of fused kernels. The outboxes of all lanes stay in a device's level 2 cache.
  std::size_t outbox_nbytes = 256 << 10;
  // The most that a rank sends eagerly to all others together: see gpu/fused/eager.h. It writes
  // twice as many bytes.
  std::size_t eager_nbytes = 1 << 20;
  // The largest all-reduce that takes two hops if it is too large for one; 2 MiB is intended. It
  // needs four times as much memory. It is off, because it has not been measured.
  std::size_t two_hop_nbytes = 0;
  int max_ctas = 32;  // of one rank: for messages, in all channels; for a fused kernel
  // Uses at most a fifth of the device's multiprocessors, even if that is fewer than max_ctas:
  // kernels of groups that run at once wait for peers. All of them must fit on the device, or they
  // may wait for each other.
  bool shares_device = true;
  // The group's streams have the highest priority of the device, or that of other streams.
  bool is_high_priority_stream = true;
};

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
