// Keeps memory until a device is done with it.
//
// When device memory is freed, its allocator may at once give it to another user on the stream that
// it was allocated for. c10's recordStream would announce our streams to the allocator, but c10
// asks about these streams as long as the process runs, and a group destroys its streams. So the
// memory of an operation is held until the stream that the operation was called on waits for its
// end.
#pragma once

#include <cuda_runtime_api.h>

#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/status.h"
#include "gpu/nccl/event_pool.h"

namespace ringcomm::nccl {

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
