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
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

class Captures {
 public:
  // Whether `user` is being captured. If so, its graph is counted from now on. `own` is about to be
  // enqueued behind `user`.
  bool note(cudaStream_t user, cudaStream_t own);

  // The number of graphs that hold something of the group.
  int alive() const { return alive_->load(std::memory_order_acquire); }

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
