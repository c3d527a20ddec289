// Collectives that only move values: all-gather, broadcast, gather, scatter; and the barriers.
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/errors.h"

namespace ringcomm {

RingBackend::WorkPtr RingBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather";
  const Tensors& list = single(outputs, what, "output list");
  const at::Tensor& input = single(inputs, what, "input tensor");
  check_one_per_rank(list.size(), size_, what, "output tensor");
  check_tensor(input, what);
  check_outputs(list, what);
  check_same_dtype(input, list[0], what);
  check_numel(list[rank_].numel(), input.numel(), what, "output tensor of this rank");
  const Elements elements = elements_to_move(input.scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::ALLGATHER, "ring:all_gather", inputs, list, timeout, opts.asyncOp},
                [communicator = communicator_, flat = readable(input), data = writable(list),
                 elements, timeout] {
                  communicator->all_gather(flat.const_data_ptr(), outputs_of(data, elements),
                                           elements.dtype, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather_into_tensor";
  check_output(output, what);
  check_tensor(input, what);
  check_same_dtype(input, output, what);
  check_numel(output.numel(), input.numel() * size_, what, "output tensor");
  const Elements elements = elements_to_move(input.scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::_ALLGATHER_BASE,
                 "ring:_all_gather_base",
                 {input},
                 {output},
                 timeout,
                 opts.asyncOp},
                [communicator = communicator_, flat = readable(input),
                 data = Writable(output, false), elements, timeout] {
                  communicator->all_gather(
                      flat.const_data_ptr(),
                      pieces<Output>(data.flat(), elements, communicator->world_size()),
                      elements.dtype, timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather_coalesced";
  check_one_per_rank(outputs.size(), size_, what, "output list");
  Tensors all;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "ring: ", what, ": an output list has ",
                      list.size(), " tensors; it must have one per input, ", inputs.size());
    all.insert(all.end(), list.begin(), list.end());
  }
  return coalesce(c10d::OpType::ALLGATHER_COALESCED, "ring:all_gather", inputs, all, [&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TensorLists gathered(1);
      for (const Tensors& list : outputs) gathered[0].push_back(list[i]);
      Tensors one{inputs[i]};
      allgather(gathered, one, opts);
    }
  });
}

RingBackend::WorkPtr RingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ring: all_gather_into_tensor_coalesced: got ",
                    outputs.size(), " outputs and ", inputs.size(), " inputs");
  return coalesce(c10d::OpType::COALESCED, "ring:_all_gather_base", inputs, outputs, [&] {
    for (std::size_t i = 0; i < outputs.size(); ++i) _allgather_base(outputs[i], inputs[i], opts);
  });
}

RingBackend::WorkPtr RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const char* what = "broadcast";
  const at::Tensor& tensor = single(tensors, what, "tensor");
  check_tensor(tensor, what);
  check_root(opts.rootRank, size_, what);
  if (opts.rootRank != rank_) check_output(tensor, what);
  const Elements elements = elements_to_move(tensor.scalar_type());
  const int root = static_cast<int>(opts.rootRank);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch(
      {c10d::OpType::BROADCAST, "ring:broadcast", tensors, tensors, timeout, opts.asyncOp},
      [communicator = communicator_, data = Writable(tensor, rank_ == root), elements, root,
       timeout] {
        communicator->broadcast(data.flat().data_ptr(), elements.count(data.flat()), elements.dtype,
                                root, timeout);
        if (communicator->rank() != root) data.commit();
      });
}

RingBackend::WorkPtr RingBackend::gather(TensorLists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  const char* what = "gather";
  const at::Tensor& input = single(inputs, what, "input tensor");
  check_root(opts.rootRank, size_, what);
  check_tensor(input, what);
  Tensors list;
  if (opts.rootRank == rank_) {
    list = single(outputs, what, "output list");
    check_one_per_rank(list.size(), size_, what, "output tensor");
    check_outputs(list, what);
    check_same_dtype(input, list[0], what);
    for (const at::Tensor& output : list) {
      check_numel(output.numel(), input.numel(), what, "output tensor");
    }
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || (outputs.size() == 1 && outputs[0].empty()),
                      "ring: gather: got output tensors on rank ", rank_,
                      ", but only the root, rank ", opts.rootRank, ", has outputs");
  }
  const Elements elements = elements_to_move(input.scalar_type());
  const int root = static_cast<int>(opts.rootRank);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::GATHER, "ring:gather", inputs, list, timeout, opts.asyncOp},
                [communicator = communicator_, flat = readable(input), data = writable(list),
                 elements, root, timeout] {
                  std::vector<void*> pointers;
                  for (const Writable& output : data) {
                    pointers.push_back(output.flat().data_ptr());
                  }
                  communicator->gather(flat.const_data_ptr(), pointers, elements.count(flat),
                                       elements.dtype, root, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

RingBackend::WorkPtr RingBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                     const c10d::GatherOptions& opts) {
  TensorLists lists;
  if (opts.rootRank == rank_) {
    check_output(output, "gather_into_tensor");
    check_numel(output.numel(), input.numel() * size_, "gather_into_tensor", "output tensor");
    TORCH_CHECK_VALUE(output.is_contiguous(),
                      "ring: gather_into_tensor: the output tensor must be contiguous");
    lists.push_back(output.view({size_, -1}).unbind(0));
  }
  Tensors one{input};
  return gather(lists, one, opts);
}

RingBackend::WorkPtr RingBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ScatterOptions& opts) {
  const char* what = "scatter";
  const at::Tensor& output = single(outputs, what, "output tensor");
  check_root(opts.rootRank, size_, what);
  check_output(output, what);
  Tensors list;
  if (opts.rootRank == rank_) {
    list = single(inputs, what, "input list");
    check_one_per_rank(list.size(), size_, what, "input tensor");
    check_list(list, what);
    check_same_dtype(list[0], output, what);
    for (const at::Tensor& input : list) {
      check_numel(input.numel(), output.numel(), what, "input tensor");
    }
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || (inputs.size() == 1 && inputs[0].empty()),
                      "ring: scatter: got input tensors on rank ", rank_,
                      ", but only the root, rank ", opts.rootRank, ", has inputs");
  }
  const Elements elements = elements_to_move(output.scalar_type());
  const int root = static_cast<int>(opts.rootRank);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::SCATTER, "ring:scatter", list, outputs, timeout, opts.asyncOp},
                [communicator = communicator_, flat = readable(list),
                 data = Writable(output, false), elements, root, timeout] {
                  std::vector<const void*> pointers;
                  for (const at::Tensor& input : flat) pointers.push_back(input.const_data_ptr());
                  communicator->scatter(pointers, data.flat().data_ptr(),
                                        elements.count(data.flat()), elements.dtype, root, timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& opts) {
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::BARRIER, "ring:barrier", {}, {}, timeout, opts.asyncOp},
                [communicator = communicator_, timeout] { communicator->barrier(timeout); });
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  try {
    communicator_->monitored_barrier(
        wait_all_ranks, opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout);
  } catch (const Error&) {
    rethrow_for_torch(std::current_exception());
  }
}

}  // namespace ringcomm
