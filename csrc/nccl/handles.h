// CUDA's streams and events with an owner, and the device they belong to.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "nccl/errors.h"

namespace ringcomm::nccl {

// Makes a device current while it lives. Not for threads of our own: they have no device to go back
// to, and cudaSetDevice makes a context, of hundreds of megabytes, on the device that it is given.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    RINGCOMM_CHECK(cudaGetDevice(&previous_));
    if (previous_ != device_) RINGCOMM_CHECK(cudaSetDevice(device_));
  }
  ~DeviceGuard() {
    if (previous_ != device_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const int device_;
  int previous_ = 0;
};

// Lets this thread ask about events, and allocate, while it or another one captures a graph. Throws
// nothing: if CUDA has failed, the call that it is made for says so.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A stream that does not wait for the legacy default stream, of the current device. Of the highest
// priority, so that messages, which peers wait for, get in before the user's kernels.
class Stream {
 public:
  Stream() {
    int least = 0, greatest = 0;
    RINGCOMM_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    RINGCOMM_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { RINGCOMM_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

  // Whether all that the event was recorded behind is done. Also during a capture, of which the
  // event is no part.
  bool happened() const {
    const RelaxedCapture relaxed;
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    check(result, "cudaEventQuery(event)");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace ringcomm::nccl
