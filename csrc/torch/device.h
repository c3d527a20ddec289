// What the backend needs from an accelerator.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/device_board.h"
#include "core/group.h"
#include "gpu/streams/device_collectives.h"
#include "torch/operation.h"
#include "torch/tensors.h"

namespace ringcomm {

// One rank's part of a group on one device. Everything is enqueued there and ordered with the
// current stream, as torch's own backends do.
class DeviceGroup {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual ~DeviceGroup() = default;

  virtual at::Device device() const = 0;
  // Connects the device with all other ranks', which must do so, too. The first collective does it
  // otherwise; the first message of a pair of ranks connects those two.
  virtual void connect(std::chrono::milliseconds timeout) = 0;
  virtual WorkPtr enqueue(const Operation& operation, const Operation::Body& body) = 0;
  // Done when everything enqueued so far is.
  virtual WorkPtr join(const Operation& operation) = 0;
  // Messages that belong together: none waits for another. data[i] is flat where messages[i] says,
  // and committed where that has arrived.
  virtual WorkPtr exchange(const Operation& operation, const std::vector<PeerMessage>& messages,
                           const std::vector<Writable>& data) = 0;
  // Reports which operations are known to be complete; any thread.
  virtual void note_completed() = 0;
  virtual void shut_down(std::chrono::milliseconds timeout) = 0;
  virtual void abort(const std::string& reason) = 0;
};

// Why this build cannot send CUDA tensors, and what to do; empty if it can.
const char* missing_for_cuda();

// Does not wait for other ranks. Throws Error.
std::unique_ptr<DeviceGroup> make_cuda_group(Group& group, at::Device device,
                                             const streams::DeviceOptions& options);

}  // namespace ringcomm
