// CUDA's and NCCL's failures as Errors, and what belongs to a device with an owner: streams, events
// and memory.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace ringcomm::nccl {

// These throw Error (kLibrary) unless the call succeeded. NCCL's "in progress" is no failure.
// CUDA's last error is cleared, because the Error reports it.
void check(cudaError_t result, const char* call);
void check(ncclResult_t result, const char* call);

// RINGCOMM_CHECK(cudaEventRecord(event, stream))
#define RINGCOMM_CHECK(call) ::ringcomm::nccl::check((call), #call)

// Lets this thread ask about events, and allocate, while it or another thread captures a graph. It
// throws nothing: if CUDA has failed, the next call reports that.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The highest priority lets messages, which peers wait for, run before the user's kernels.
enum class Priority { kNormal, kHighest };

// A stream of the current device that does not wait for the legacy default stream.
class Stream {
 public:
  explicit Stream(Priority priority = Priority::kHighest) {
    int least = 0, greatest = 0;
    if (priority == Priority::kHighest) {
      RINGCOMM_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    }
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

// A timed event takes the device longer to record.
enum class Timing { kOff, kOn };

class Event {
 public:
  explicit Event(Timing timing = Timing::kOff) {
    const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
    RINGCOMM_CHECK(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

  // Whether all is done that was enqueued before the event was recorded. This works during a
  // capture, too, if the event is no part of it.
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

// The rest is device memory of a group's own. It comes from CUDA and not from torch's allocator:
// what torch allocates while a graph is captured or warmed up belongs to the pool of that graph,
// and the group outlives the graph.

// Makes other allocators that keep device memory for later use, as torch's does, give it back to
// CUDA.
using Reclaim = std::function<void()>;

// How much device memory a group holds. Any thread.
class HeldMemory {
 public:
  // publish(nbytes) is called whenever that changes, one call at a time.
  using Publish = std::function<void(std::size_t nbytes)>;
  explicit HeldMemory(Publish publish) : publish_(std::move(publish)) {}

  void add(std::size_t nbytes) { change(nbytes); }
  void remove(std::size_t nbytes) { change(-nbytes); }
  // Nothing is published from now on: memory may outlive the group.
  void close() {
    const std::lock_guard lock(mutex_);
    publish_ = nullptr;
  }

 private:
  void change(std::size_t by) {
    const std::lock_guard lock(mutex_);
    nbytes_ += by;
    if (publish_) publish_(nbytes_);
  }

  std::mutex mutex_;
  std::size_t nbytes_ = 0;
  Publish publish_;
};

// How a group allocates its memory.
struct Allocator {
  Reclaim reclaim;
  std::shared_ptr<HeldMemory> held = nullptr;  // null: it is not counted
};

// Allocates memory on the current device. It is freed with its last holder, and that waits for what
// the device is doing. If there is too little memory, the allocation is tried once more after
// reclaim(). Throws Error (kLibrary).
std::shared_ptr<void> allocate(std::size_t nbytes, const Allocator& allocator);

// Keeps the memory as long as the process: the device, a graph or another rank may still use it.
void keep_for_good(std::shared_ptr<void> memory);

}  // namespace ringcomm::nccl
