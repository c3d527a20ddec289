// The end of what has been enqueued on a device, and the memory that is kept until then.
//
// There is one event for all that ask for the end, which are the work that the user holds, the
// watchdog, and the stash that keeps the tensors.
//
// When device memory is freed, its allocator may at once give it to another user on the stream that
// it was allocated for. c10's recordStream would announce our streams to the allocator, but c10
// asks about these streams as long as the process runs, and a group destroys its streams. So the
// memory of an operation is held until the stream that the operation was called on waits for its
// end.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/status.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

class EventHandle {
 public:
  // Records the event behind what is on the stream now. `captured`: the stream is being captured in
  // a graph, so the host can never ask whether the event happened.
  void record(cudaStream_t stream, bool captured) {
    RINGCOMM_CHECK(cudaEventRecord(event_.get(), stream));
    state_.store(captured ? kCaptured : kRecorded, std::memory_order_release);
  }

  bool is_recorded() const { return state_.load(std::memory_order_acquire) != kUnrecorded; }
  bool is_captured() const { return state_.load(std::memory_order_acquire) == kCaptured; }

  // It is false for a captured event.
  bool happened() const {
    const State state = state_.load(std::memory_order_acquire);
    if (state != kRecorded) return state == kConfirmed;
    return event_.happened();
  }

  // The event happened, and nothing had failed by then: a later failure does not concern it.
  void confirm() { state_.store(kConfirmed, std::memory_order_release); }
  bool is_confirmed() const { return state_.load(std::memory_order_acquire) == kConfirmed; }

  void make_wait(cudaStream_t stream) const {
    RINGCOMM_CHECK(cudaStreamWaitEvent(stream, event_.get(), 0));
  }

 private:
  friend class EventPool;
  enum State { kUnrecorded, kRecorded, kCaptured, kConfirmed };
  Event event_;
  std::atomic<State> state_{kUnrecorded};
};

// Events that are used again as soon as only the pool holds them.
class EventPool {
 public:
  std::shared_ptr<EventHandle> take() {
    for (std::size_t tried = 0; tried < kTries && tried < all_.size(); ++tried) {
      next_ = (next_ + 1) % all_.size();
      if (all_[next_].use_count() > 1) continue;
      all_[next_]->state_.exchange(EventHandle::kUnrecorded, std::memory_order_acq_rel);
      return all_[next_];
    }
    return all_.emplace_back(std::make_shared<EventHandle>());
  }

 private:
  // The event after the last taken one is the oldest, and most likely free.
  static constexpr std::size_t kTries = 4;
  std::vector<std::shared_ptr<EventHandle>> all_;
  std::size_t next_ = 0;
};

// The end of what has been enqueued, and the stream that it is on.
struct Enqueued {
  std::shared_ptr<EventHandle> end;
  cudaStream_t stream;
};

// Memory of operations that no stream has waited for and that no work holds any more.
template <typename Memory>
class TensorStash {
 public:
  struct Kept {
    std::vector<Memory> memory;
    std::shared_ptr<const EventHandle> end;
  };

  // `one` is a list of one element, so that nothing is allocated.
  void keep(std::list<Kept> one) noexcept {
    std::lock_guard lock(mutex_);
    kept_.splice(kept_.end(), one);
  }

  // Releases the memory of operations that are done. Memory of captured operations stays in the
  // stash, because the host cannot know when they are done.
  void sweep() {
    std::list<Kept> done;  // freed without the lock, because that may run any code
    std::lock_guard lock(mutex_);
    for (auto kept = kept_.begin(); kept != kept_.end();) {
      const auto next = std::next(kept);
      if (kept->end->happened()) done.splice(done.end(), kept_, kept);
      kept = next;
    }
  }

 private:
  std::mutex mutex_;
  std::list<Kept> kept_;
};

// The memory that one operation uses.
template <typename Memory>
class StashedTensors {
 public:
  // `user` is the stream that the operation is called on, and that the memory was allocated for.
  StashedTensors(std::vector<Memory> memory, cudaStream_t user,
                 std::shared_ptr<TensorStash<Memory>> stash)
      : user_(user), stash_(std::move(stash)) {
    held_.push_back({std::move(memory), nullptr});
  }
  ~StashedTensors() {
    if (end_ && !held_.front().memory.empty() && !is_done()) keep();
  }
  StashedTensors(const StashedTensors&) = delete;
  StashedTensors& operator=(const StashedTensors&) = delete;

  // `end` is the end of the operation, which is enqueued by now.
  void until(std::shared_ptr<const EventHandle> end) { end_ = std::move(end); }

  // Makes the stream wait for the end. Any thread may call this.
  void make_wait(cudaStream_t stream) {
    end_->make_wait(stream);
    if (stream != user_) return;
    std::vector<Memory> freed;  // without the lock
    std::lock_guard lock(mutex_);
    freed.swap(held_.front().memory);
  }

 private:
  // It is false if CUDA fails: the next call of CUDA reports that.
  bool is_done() const noexcept {
    try {
      return end_->happened();
    } catch (const Error&) {
      return false;
    }
  }
  void keep() noexcept {
    held_.front().end = end_;
    stash_->keep(std::move(held_));
  }

  const cudaStream_t user_;
  const std::shared_ptr<TensorStash<Memory>> stash_;
  std::shared_ptr<const EventHandle> end_;
  std::mutex mutex_;
  std::list<typename TensorStash<Memory>::Kept> held_;  // one
};

}  // namespace ringcomm::nccl
