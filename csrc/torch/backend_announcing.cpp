#include "torch/backend_announcing.h"

#include "core/thread.h"
#include "torch/errors.h"
#include "torch/pending_calls.h"

namespace ringcomm {
namespace {

const at::Tensor& first(const RingBackend::Tensors& tensors) {
  static const at::Tensor none;
  return tensors.empty() ? none : tensors[0];
}

}  // namespace

template <typename Body>
auto AnnouncingBackend::announcing(const char* what, const at::Tensor& tensor,
                                   std::size_t num_calls, Body body) {
  if (PendingCalls::any() || (tensor.defined() && tensor.is_cuda())) return body();
  const PendingCalls pending(num_calls);
  try {
    return body();
  } catch (const NoThread&) {
    if (pending.count() < num_calls) {
      announce_refusal(what_of(std::current_exception()), pending.count());
    } else {
      communicator()->group().note_unmade();
    }
    rethrow_from_call(std::current_exception(), where(what));
  } catch (const std::bad_alloc&) {
    const std::exception_ptr error = std::current_exception();
    if (pending.count() > 0) {
      announce_refusal(what_of(error), pending.count());
    } else {  // the call is made, and its caller learns nothing of it
      communicator()->group().fail_with(error, [&] { return std::string(what); });
    }
    rethrow_from_call(error, where(what));
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (pending.count() > 0) announce_refusal(reason_of(error), pending.count());
    rethrow_from_call(error, where(what));
  }
}

// "rank 1 in all_reduce"
std::string AnnouncingBackend::where(const char* what) const {
  const std::string name = communicator() ? communicator()->group().members.name(rank_)
                                          : "rank " + std::to_string(rank_);
  return name + " in " + what;
}

RingBackend::WorkPtr AnnouncingBackend::allreduce(Tensors& tensors,
                                                  const c10d::AllreduceOptions& opts) {
  return announcing("all_reduce", first(tensors), 1,
                    [&] { return RingBackend::allreduce(tensors, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::allreduce_sparse(Tensors& tensors,
                                                         const c10d::AllreduceOptions& opts) {
  return announcing("all_reduce", first(tensors), 1,
                    [&] { return RingBackend::allreduce_sparse(tensors, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return announcing("all_reduce_coalesced", first(tensors), tensors.size(),
                    [&] { return RingBackend::allreduce_coalesced(tensors, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return announcing("reduce", first(tensors), 1,
                    [&] { return RingBackend::reduce(tensors, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                       const c10d::ReduceScatterOptions& opts) {
  return announcing("reduce_scatter", first(outputs), 1,
                    [&] { return RingBackend::reduce_scatter(outputs, inputs, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  return announcing("reduce_scatter_tensor", output, 1,
                    [&] { return RingBackend::_reduce_scatter_base(output, input, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return announcing("reduce_scatter_tensor_coalesced", first(outputs), outputs.size(), [&] {
    return RingBackend::reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  });
}

RingBackend::WorkPtr AnnouncingBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  return announcing("all_gather", first(inputs), 1,
                    [&] { return RingBackend::allgather(outputs, inputs, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& opts) {
  return announcing("all_gather_into_tensor", input, 1,
                    [&] { return RingBackend::_allgather_base(output, input, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  return announcing("all_gather_coalesced", first(inputs), inputs.size(),
                    [&] { return RingBackend::allgather_coalesced(outputs, inputs, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return announcing("all_gather_into_tensor_coalesced", first(inputs), inputs.size(), [&] {
    return RingBackend::allgather_into_tensor_coalesced(outputs, inputs, opts);
  });
}

RingBackend::WorkPtr AnnouncingBackend::broadcast(Tensors& tensors,
                                                  const c10d::BroadcastOptions& opts) {
  return announcing("broadcast", first(tensors), 1,
                    [&] { return RingBackend::broadcast(tensors, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::gather(TensorLists& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& opts) {
  return announcing("gather", first(inputs), 1,
                    [&] { return RingBackend::gather(outputs, inputs, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                           const c10d::GatherOptions& opts) {
  return announcing("gather_into_tensor", input, 1,
                    [&] { return RingBackend::gather_into_tensor(output, input, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                const c10d::ScatterOptions& opts) {
  return announcing("scatter", first(outputs), 1,
                    [&] { return RingBackend::scatter(outputs, inputs, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& opts) {
  return announcing("all_to_all", first(inputs), 1,
                    [&] { return RingBackend::alltoall(outputs, inputs, opts); });
}

RingBackend::WorkPtr AnnouncingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& opts) {
  return announcing("all_to_all_single", input, 1, [&] {
    return RingBackend::alltoall_base(output, input, output_splits, input_splits, opts);
  });
}

RingBackend::WorkPtr AnnouncingBackend::barrier(const c10d::BarrierOptions& opts) {
  return announcing("barrier", {}, 1, [&] { return RingBackend::barrier(opts); });
}

void AnnouncingBackend::suspend() {
  announcing("suspend", {}, 1, [&] { RingBackend::suspend(); });
}

template <typename Body>
auto AnnouncingBackend::announcing_message(shm::Message::Kind kind, const at::Tensor& tensor,
                                           int peer, int tag, Body body) {
  if (tensor.defined() && tensor.is_cuda()) return body();
  const PendingCalls pending(1);
  const char* const what = kind == shm::Message::Kind::kSend ? "send" : "recv";
  try {
    return body();
  } catch (const NoThread&) {
    communicator()->group().note_unmade();
    rethrow_from_call(std::current_exception(), where(what));
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (pending.count() > 0) refuse_message(kind, peer, tag, reason_of(error));
    rethrow_from_call(error, where(what));
  }
}

RingBackend::WorkPtr AnnouncingBackend::send(Tensors& tensors, int peer, int tag) {
  return announcing_message(shm::Message::Kind::kSend, first(tensors), peer, tag,
                            [&] { return RingBackend::send(tensors, peer, tag); });
}

RingBackend::WorkPtr AnnouncingBackend::recv(Tensors& tensors, int peer, int tag) {
  return announcing_message(shm::Message::Kind::kRecv, first(tensors), peer, tag,
                            [&] { return RingBackend::recv(tensors, peer, tag); });
}

RingBackend::WorkPtr AnnouncingBackend::recvAnysource(Tensors& tensors, int tag) {
  return announcing_message(shm::Message::Kind::kRecv, first(tensors), shm::kAnySource, tag,
                            [&] { return RingBackend::recvAnysource(tensors, tag); });
}

RingBackend::WorkPtr AnnouncingBackend::begin_message(shm::Message::Kind kind,
                                                      const at::Tensor& tensor, int peer, int tag) {
  if (!tensor.is_cpu() || tensor.is_complex() || tensor.is_neg() || peer == rank_) return nullptr;
  Tensors tensors{tensor};
  return kind == shm::Message::Kind::kSend ? send(tensors, peer, tag) : recv(tensors, peer, tag);
}

bool AnnouncingBackend::try_message_sync(shm::Message::Kind kind, const at::Tensor& tensor,
                                         int peer, int tag) {
  return announcing_message(kind, tensor, peer, tag,
                            [&] { return RingBackend::try_message_sync(kind, tensor, peer, tag); });
}

bool AnnouncingBackend::try_all_reduce_sync(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return announcing("all_reduce", tensor, 1,
                    [&] { return RingBackend::try_all_reduce_sync(tensor, op); });
}

bool AnnouncingBackend::try_reduce_scatter_sync(const at::Tensor& output, const at::Tensor& input,
                                                const c10d::ReduceOp& op) {
  return announcing("reduce_scatter_tensor", output, 1,
                    [&] { return RingBackend::try_reduce_scatter_sync(output, input, op); });
}

bool AnnouncingBackend::try_all_gather_sync(const at::Tensor& output, const at::Tensor& input) {
  return announcing("all_gather_into_tensor", input, 1,
                    [&] { return RingBackend::try_all_gather_sync(output, input); });
}

bool AnnouncingBackend::try_broadcast_sync(const at::Tensor& tensor, int root) {
  return announcing("broadcast", tensor, 1,
                    [&] { return RingBackend::try_broadcast_sync(tensor, root); });
}

bool AnnouncingBackend::try_reduce_sync(const at::Tensor& tensor, int root,
                                        const c10d::ReduceOp& op) {
  return announcing("reduce", tensor, 1,
                    [&] { return RingBackend::try_reduce_sync(tensor, root, op); });
}

bool AnnouncingBackend::try_all_to_all_sync(const at::Tensor& output, const at::Tensor& input) {
  return announcing("all_to_all_single", input, 1,
                    [&] { return RingBackend::try_all_to_all_sync(output, input); });
}

bool AnnouncingBackend::try_barrier_sync() {
  return announcing("barrier", {}, 1, [&] { return RingBackend::try_barrier_sync(); });
}

}  // namespace ringcomm
