// What a group's part on a device is told. What it holds at first is the default, here and nowhere
// else.
#pragma once

#include <cstdint>
#include <string>

#include "core/selection.h"
#include "core/status.h"
#include "gpu/streams/layout.h"

namespace ringcomm::streams {

// How collectives are carried out there: as messages, each a call to NCCL, or by one kernel each on
// memory that all ranks reach, where they are on one host and do. kAuto: see kAutoIsFused, and
// by_kernel() in streams/choice.h.
enum class DeviceExecutor : std::uint8_t { kAuto, kMessages, kFused };

// "auto", "messages" or "fused". Throws Error (kInvalidArgument) for anything else.
inline DeviceExecutor executor_named(const std::string& name) {
  if (name == "auto") return DeviceExecutor::kAuto;
  if (name == "messages") return DeviceExecutor::kMessages;
  if (name == "fused") return DeviceExecutor::kFused;
  throw Error(ErrorKind::kInvalidArgument,
              "the executor is \"" + name + "\"; it must be auto, messages or fused");
}

// The switch: whether kAuto takes kernels for what they are best at. Off until a first run on
// several GPUs; the environment's executor=fused asks for them by name.
inline constexpr bool kAutoIsFused = false;
// What happens when operations fail that are under way on a device, whose callers have gone on long
// ago: the process ends, or later calls raise the error.
enum class AsyncErrors : std::uint8_t { kExit, kRaise };

// "exit" or "raise". Throws Error (kInvalidArgument) for anything else.
inline AsyncErrors async_errors_named(const std::string& name) {
  if (name == "exit") return AsyncErrors::kExit;
  if (name == "raise") return AsyncErrors::kRaise;
  throw Error(ErrorKind::kInvalidArgument,
              "what asynchronous errors do is \"" + name + "\"; it must be exit or raise");
}

struct DeviceOptions {
  Selection selection = {};
  AsyncErrors async_errors = AsyncErrors::kExit;
  DeviceExecutor executor = DeviceExecutor::kAuto;
  bool auto_is_fused = kAutoIsFused;
  Layout layout;
  // Of one lane of fused kernels. All lanes' together stay in a device's level 2 cache.
  std::size_t outbox_nbytes = 256 << 10;
  // The most that a rank sends all others together eagerly: see fused/eager.h. Twice as much is
  // written.
  std::size_t eager_nbytes = 1 << 20;
  // The largest all-reduce that goes in two hops where it is too large for one; meant to be 2 MiB.
  // Takes four times as much memory. Off: it has not been measured.
  std::size_t two_hop_nbytes = 0;
  int max_ctas = 32;  // of one rank: of messages, in all channels; of a fused kernel
  // No more than a fifth of the device's multiprocessors, even if that is less: kernels of groups
  // that run at once wait for peers, and must all fit the device, or may wait for each other.
  bool shares_device = true;
};

}  // namespace ringcomm::streams
