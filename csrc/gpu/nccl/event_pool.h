// The end of what has been enqueued: one event for all that ask for it, which are the work that the
// user holds, the watchdog, and the stash that keeps the tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

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

}  // namespace ringcomm::nccl
