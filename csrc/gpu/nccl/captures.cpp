#include "gpu/nccl/captures.h"

#include <utility>

#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

bool Captures::note(cudaStream_t user, cudaStream_t own) {
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

void Captures::begin(cudaStream_t own, bool captured) {
  if (!ever_) return;
  const unsigned flags = captured ? cudaEventWaitExternal : cudaEventWaitDefault;
  RINGCOMM_CHECK(cudaStreamWaitEvent(own, order_->get(), flags));
}

void Captures::end(cudaStream_t own, bool captured) {
  if (!ever_) return;
  const unsigned flags = captured ? cudaEventRecordExternal : cudaEventRecordDefault;
  RINGCOMM_CHECK(cudaEventRecordWithFlags(order_->get(), own, flags));
}

}  // namespace ringcomm::nccl
