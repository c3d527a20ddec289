// What has been enqueued on a device: its end, the memory that is kept until then, and the CUDA
// graphs that have captured it.
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
#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/status.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

// ---- The end of what is enqueued ----------------------------------------------------------------

class EventHandle {
 public:
  explicit EventHandle(Timing timing = Timing::kOff) : event_(timing) {}

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

  // The time on the device from `start`, which was recorded before this event on the same stream.
  // Both are timed. Nothing: this event has not happened. It waits for nothing.
  std::optional<float> milliseconds_since(const EventHandle& start) const {
    if (!happened()) return std::nullopt;
    const RelaxedCapture relaxed;
    float milliseconds = 0;
    RINGCOMM_CHECK(cudaEventElapsedTime(&milliseconds, start.event_.get(), event_.get()));
    return milliseconds;
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
  explicit EventPool(Timing timing = Timing::kOff) : timing_(timing) {}

  std::shared_ptr<EventHandle> take() {
    for (std::size_t tried = 0; tried < kTries && tried < all_.size(); ++tried) {
      next_ = (next_ + 1) % all_.size();
      if (all_[next_].use_count() > 1) continue;
      all_[next_]->state_.exchange(EventHandle::kUnrecorded, std::memory_order_acq_rel);
      return all_[next_];
    }
    return all_.emplace_back(std::make_shared<EventHandle>(timing_));
  }

 private:
  // The event after the last taken one is the oldest, and most likely free.
  static constexpr std::size_t kTries = 4;
  const Timing timing_;
  std::vector<std::shared_ptr<EventHandle>> all_;
  std::size_t next_ = 0;
};

// The end of what has been enqueued, and the stream that it is on.
struct Enqueued {
  std::shared_ptr<EventHandle> end;
  cudaStream_t stream;
  std::shared_ptr<const EventHandle> start = nullptr;  // null: it is not timed
};

// ---- Memory that is kept until then -------------------------------------------------------------

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

// ---- CUDA graphs that have captured it ----------------------------------------------------------

// CUDA graphs in which users have captured calls of a group.
//
// A graph and its replays use the group's memory, and NCCL frees no communicator that a graph
// refers to: finalising or aborting it would wait until the graph is gone, which may be never. So
// graphs are counted for as long as CUDA keeps them (CUDA destroys a user object with the last
// graph that holds it).
//
// Replays run on any stream, and share scratch with calls that are not captured. One event orders
// all of them: each call waits for it and records it again. In a graph both are external nodes,
// which run at every replay.
class Captures {
 public:
  // Whether `user` is being captured. If so, its graph is counted from now on. `own` is about to be
  // enqueued behind `user`.
  bool note(cudaStream_t user, cudaStream_t own);

  // The number of graphs that hold something of the group.
  int alive() const { return alive_->load(std::memory_order_acquire); }

  // Whether there has been any.
  bool ever() const { return ever_; }

  // The memory that graphs refer to.
  std::shared_ptr<void> memory() const { return order_; }

  // Called before and after a call is enqueued on `own`, which waits for the user's stream by then.
  void begin(cudaStream_t own, bool captured);
  void end(cudaStream_t own, bool captured);

 private:
  using Count = std::shared_ptr<std::atomic<int>>;  // graphs may outlive the group

  const Count alive_ = std::make_shared<std::atomic<int>>(0);
  std::uint64_t last_id_ = 0;  // of a capture
  bool ever_ = false;
  const std::shared_ptr<Event> order_ = std::make_shared<Event>();
};

inline bool Captures::note(cudaStream_t user, cudaStream_t own) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  RINGCOMM_CHECK(cudaStreamGetCaptureInfo(user, &status, &id, &graph));
  if (status != cudaStreamCaptureStatusActive) return false;
  if (id == last_id_) return true;
  auto held = std::make_unique<Count>(alive_);
  // CUDA calls this when the last graph is destroyed, on a thread that must not call CUDA.
  const cudaHostFn_t forget = [](void* count) {
    const std::unique_ptr<Count> held(static_cast<Count*>(count));
    (*held)->fetch_sub(1, std::memory_order_release);
  };
  cudaUserObject_t object = nullptr;
  RINGCOMM_CHECK(
      cudaUserObjectCreate(&object, held.get(), forget, 1, cudaUserObjectNoDestructorSync));
  alive_->fetch_add(1, std::memory_order_relaxed);
  held.release();
  RINGCOMM_CHECK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  last_id_ = id;
  if (!std::exchange(ever_, true)) {
    // Calls that were enqueued before the first capture have not recorded the event.
    RINGCOMM_CHECK(cudaEventRecord(order_->get(), own));
  }
  return true;
}

inline void Captures::begin(cudaStream_t own, bool captured) {
  if (!ever_) return;
  const unsigned flags = captured ? cudaEventWaitExternal : cudaEventWaitDefault;
  RINGCOMM_CHECK(cudaStreamWaitEvent(own, order_->get(), flags));
}

inline void Captures::end(cudaStream_t own, bool captured) {
  if (!ever_) return;
  const unsigned flags = captured ? cudaEventRecordExternal : cudaEventRecordDefault;
  RINGCOMM_CHECK(cudaEventRecordWithFlags(order_->get(), own, flags));
}

}  // namespace ringcomm::nccl
