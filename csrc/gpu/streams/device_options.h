// The options of a group's part on a device. The initial values are the defaults, and are said only
// here.
#pragma once

#include <cstdint>
#include <string>

#include "core/policy.h"
#include "core/status.h"
#include "gpu/streams/layout.h"

namespace ringcomm::streams {

// How collectives are carried out there: as messages, each a call to NCCL, or as one kernel each,
// if all ranks are on one host and reach each other's memory. kAuto: see kAutoIsFused, and
// by_kernel() in gpu/streams/device_collectives.h.
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

}  // namespace ringcomm::streams
