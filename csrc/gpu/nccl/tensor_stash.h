// Who keeps memory until a device is done with it.
//
// An allocator of device memory may give away at once what is freed on the stream it was allocated
// for. c10's recordStream would tell it of our streams, too; but it keeps asking about them for as
// long as the process, and a group's go with the group. So what an operation uses is held until the
// stream that it was called on waits for its end.
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

// What nobody has waited for yet, and nobody holds any more.
template <typename Memory>
class TensorStash {
 public:
  struct Kept {
    std::vector<Memory> memory;
    std::shared_ptr<const EventHandle> end;
  };

  // A list of one, so that nothing is allocated.
  void keep(std::list<Kept> one) noexcept {
    std::lock_guard lock(mutex_);
    kept_.splice(kept_.end(), one);
  }

  // Lets go of what is done. What was captured stays with the shelf: nobody can tell.
  void sweep() {
    std::list<Kept> done;  // freed without the lock: that may run anything
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

// What one operation uses.
template <typename Memory>
class StashedTensors {
 public:
  // `user` is the stream that the operation is called on, and the memory allocated for.
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

  // Where the operation, which is enqueued by now, ends.
  void until(std::shared_ptr<const EventHandle> end) { end_ = std::move(end); }

  // Makes the stream wait for the end. Any thread.
  void make_wait(cudaStream_t stream) {
    end_->make_wait(stream);
    if (stream != user_) return;
    std::vector<Memory> freed;  // without the lock
    std::lock_guard lock(mutex_);
    freed.swap(held_.front().memory);
  }

 private:
  // False if CUDA fails: its next call reports that.
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
