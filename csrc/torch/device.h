// What the backend needs of an accelerator.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "programs.h"
#include "shm/group.h"
#include "streams/collectives.h"
#include "torch/launch.h"
#include "torch/tensors.h"

namespace ringcomm {

// One rank's part of a group on one device. Everything is enqueued there and ordered with the
// current stream, as torch's own backends do.
class DeviceGroup {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Message {
    bool is_send;
    int peer;
    Writable data;
  };

  virtual ~DeviceGroup() = default;

  virtual at::Device device() const = 0;
  // Connects the device with all other ranks', which must do so, too. The first collective does it
  // otherwise; the first message of a pair of ranks connects those two.
  virtual void connect(std::chrono::milliseconds timeout) = 0;
  virtual WorkPtr launch(const Launch& launch, std::uint64_t sequence,
                         const std::function<void(streams::Collectives&)>& run) = 0;
  // Done when everything launched so far is.
  virtual WorkPtr join(const Launch& launch, std::uint64_t sequence) = 0;
  // Messages that belong together: none waits for another.
  virtual WorkPtr exchange(const Launch& launch, std::uint64_t sequence,
                           const std::vector<Message>& messages) = 0;
  virtual void shut_down(std::chrono::milliseconds timeout) = 0;
  virtual void abort(const std::string& reason) = 0;
};

struct DeviceOptions {
  Algorithm algorithm;
  int num_channels;
  std::size_t slice_nbytes;
  int max_ctas;
  bool graphs;
};

// Why this build cannot send CUDA tensors, and what to do; empty if it can.
std::string missing_for_cuda();

// Waits for nobody. Throws Error.
std::unique_ptr<DeviceGroup> make_cuda_group(shm::Group& group, at::Device device,
                                             const DeviceOptions& options);

}  // namespace ringcomm
