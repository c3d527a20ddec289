// A backend whose other ranks hear of it when this rank's arguments are refused.
//
// Without that they would wait for a rank that has raised, and may go on. Of a message, its peer
// hears, if the peer is one and the tag is one that it may be waiting for. Tensors on a device are
// not covered: devices do not wait for each other's calls on the host. What is checked before torch
// calls the backend is announced by whoever called torch (ringcomm/_delegate.py).
#pragma once

#include <c10/util/Exception.h>

#include "torch/backend.h"

namespace ringcomm {

class AnnouncingBackend final : public RingBackend {
 public:
  using RingBackend::RingBackend;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void suspend() override;
  bool try_all_reduce_sync(const at::Tensor& tensor, const c10d::ReduceOp& op);
  bool try_reduce_scatter_sync(const at::Tensor& output, const at::Tensor& input,
                               const c10d::ReduceOp& op);
  bool try_all_gather_sync(const at::Tensor& output, const at::Tensor& input);
  bool try_broadcast_sync(const at::Tensor& tensor, int root);
  bool try_reduce_sync(const at::Tensor& tensor, int root, const c10d::ReduceOp& op);
  bool try_all_to_all_sync(const at::Tensor& output, const at::Tensor& input);
  bool try_barrier_sync();

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  // Null, with nothing done, where torch has to change the tensor first.
  WorkPtr begin_message(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag);
  bool try_message_sync(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag);

 private:
  // body(), which makes the call `what`, or `num_calls` of them, for tensors like `tensor`.
  template <typename Body>
  auto announcing(const char* what, const at::Tensor& tensor, std::size_t num_calls, Body body);
  std::string where(const char* what) const;
  // body(), which posts a message.
  template <typename Body>
  auto announcing_message(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag,
                          Body body);
};

}  // namespace ringcomm
