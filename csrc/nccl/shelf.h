// Who keeps memory until a device is done with it.
//
// An allocator of device memory may give away at once what is freed on the stream it was allocated
// for. c10's recordStream would tell it of our streams, too; but it keeps asking about them for as
// long as the process, and a group's go with the group. So what an operation uses is held until the
// stream that it was called on waits for its end.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nccl/ends.h"

namespace ringcomm::nccl {

// What nobody has waited for yet, and nobody holds any more.
template <typename Memory>
class Shelf {
 public:
  void keep(std::vector<Memory> memory, std::shared_ptr<const End> end) {
    std::lock_guard lock(mutex_);
    kept_.push_back({std::move(memory), std::move(end)});
  }

  // Lets go of what is done. What was captured stays with the shelf: nobody can tell.
  void sweep() {
    std::vector<Kept> done;  // freed without the lock: that may run anything
    std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&done](Kept& kept) {
      if (!kept.end->happened()) return false;
      done.push_back(std::move(kept));
      return true;
    });
  }

 private:
  struct Kept {
    std::vector<Memory> memory;
    std::shared_ptr<const End> end;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

// What one operation uses.
template <typename Memory>
class Holding {
 public:
  // `user` is the stream that the operation is called on, and the memory allocated for.
  Holding(std::vector<Memory> memory, cudaStream_t user, std::shared_ptr<Shelf<Memory>> shelf)
      : user_(user), shelf_(std::move(shelf)), memory_(std::move(memory)) {}
  ~Holding() {
    if (end_ && !memory_.empty() && !end_->happened()) shelf_->keep(std::move(memory_), end_);
  }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

  // Where the operation, which is enqueued by now, ends.
  void until(std::shared_ptr<const End> end) { end_ = std::move(end); }

  // Makes the stream wait for the end. Any thread.
  void make_wait(cudaStream_t stream) {
    end_->make_wait(stream);
    if (stream != user_) return;
    std::vector<Memory> freed;  // without the lock
    std::lock_guard lock(mutex_);
    freed.swap(memory_);
  }

 private:
  const cudaStream_t user_;
  const std::shared_ptr<Shelf<Memory>> shelf_;
  std::shared_ptr<const End> end_;
  std::mutex mutex_;
  std::vector<Memory> memory_;
};

}  // namespace ringcomm::nccl
