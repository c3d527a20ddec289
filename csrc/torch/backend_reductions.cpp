// Collectives that combine values: all-reduce, reduce, reduce-scatter. Each checks its arguments,
// brings the tensors into shape and submits what the collectives are to do with them.
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/sparse.h"

namespace ringcomm {

RingBackend::WorkPtr RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const char* what = "all_reduce";
  const at::Tensor& tensor = single(tensors, what, "tensor");
  if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
  if (runs_sync(opts) && try_all_reduce_sync(tensor, opts.reduceOp)) {
    return done(c10d::OpType::ALLREDUCE, tensor);
  }
  check_output(tensor, what);
  const Elements elements = elements_to_reduce(tensor.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  Writable data(tensor, true);
  const auto timeout = timeout_or_default(opts.timeout);
  return submit({c10d::OpType::ALLREDUCE, "ring:all_reduce", tensors, tensors, memory_of(data),
                 timeout, opts.asyncOp},
                [data, elements, reduce, timeout](Collectives& collectives) {
                  void* buffer = data.flat().data_ptr();
                  collectives.all_reduce(buffer, buffer, elements.count(data.flat()), reduce,
                                         timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = single(tensors, "all_reduce", "tensor");
  check_sparse(tensor, opts.reduceOp);
  const auto timeout = timeout_or_default(opts.timeout);
  return submit({c10d::OpType::_ALLREDUCE_SPARSE, "ring:sparse_all_reduce", tensors, tensors,
                 tensors, timeout, opts.asyncOp, kSparseCalls},
                [tensor, timeout](Collectives& collectives) {
                  all_reduce_sparse(collectives, tensor, timeout);
                });
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  check_outputs(tensors, "all_reduce_coalesced");
  return coalesce(c10d::OpType::ALLREDUCE_COALESCED, "ring:all_reduce", tensors, tensors, [&] {
    for (const at::Tensor& tensor : tensors) {
      Tensors one{tensor};
      allreduce(one, opts);
    }
  });
}

RingBackend::WorkPtr RingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const char* what = "reduce";
  const at::Tensor& tensor = single(tensors, what, "tensor");
  if (runs_sync(opts) && try_reduce_sync(tensor, static_cast<int>(opts.rootRank), opts.reduceOp)) {
    return done(c10d::OpType::REDUCE, tensor);
  }
  check_tensor(tensor, what);
  check_root(opts.rootRank, size_, what);
  if (opts.rootRank == rank_) check_output(tensor, what);
  const Elements elements = elements_to_reduce(tensor.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  Writable data(tensor, true);
  const auto timeout = timeout_or_default(opts.timeout);
  return submit({c10d::OpType::REDUCE, "ring:reduce", tensors, tensors, memory_of(data), timeout,
                 opts.asyncOp},
                [data, elements, reduce, root = static_cast<int>(opts.rootRank),
                 timeout](Collectives& collectives) {
                  void* buffer = data.flat().data_ptr();
                  collectives.reduce(buffer, buffer, elements.count(data.flat()), reduce, root,
                                     timeout);
                  if (collectives.rank() == root) data.commit();
                });
}

RingBackend::WorkPtr RingBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  const char* what = "reduce_scatter";
  const at::Tensor& output = single(outputs, what, "output tensor");
  const Tensors& list = single(inputs, what, "input list");
  check_one_per_rank(list.size(), size_, what, "input tensor");
  check_output(output, what);
  check_list(list, what);
  check_alike(list[0], output, what);
  check_numel(output.numel(), list[rank_].numel(), what, "output tensor");
  const Elements elements = elements_to_reduce(output.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  const auto timeout = timeout_or_default(opts.timeout);
  const Writable data(output, false);
  const Tensors flat = readable_apart(list, data, rank_);
  return submit({c10d::OpType::REDUCE_SCATTER, "ring:reduce_scatter", list, outputs,
                 memory_of(flat, data), timeout, opts.asyncOp},
                [flat, data, elements, reduce, timeout](Collectives& collectives) {
                  collectives.reduce_scatter(inputs_of(flat, elements), data.flat().data_ptr(),
                                             reduce, timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  if (runs_sync(opts) && try_reduce_scatter_sync(output, input, opts.reduceOp)) {
    return done(c10d::OpType::_REDUCE_SCATTER_BASE, output);
  }
  const char* what = "reduce_scatter_tensor";
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
  check_numel(input.numel(), output.numel() * size_, what, "input tensor");
  const Elements elements = elements_to_reduce(output.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  const auto timeout = timeout_or_default(opts.timeout);
  const Writable data(output, false);
  at::Tensor flat = readable(input);
  flat = apart(flat, {data}, is_piece(flat, data.flat(), rank_));
  return submit({c10d::OpType::_REDUCE_SCATTER_BASE,
                 "ring:_reduce_scatter_base",
                 {input},
                 {output},
                 memory_of(flat, data),
                 timeout,
                 opts.asyncOp},
                [flat, data, elements, reduce, timeout](Collectives& collectives) {
                  collectives.reduce_scatter(
                      pieces<Input>(flat, elements, collectives.world_size()),
                      data.flat().data_ptr(), reduce, timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const char* what = "reduce_scatter_tensor_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ring: ", what, ": got ", outputs.size(),
                    " outputs and ", inputs.size(), " inputs");
  Tensors sources = check_coalesced(inputs, one_each(outputs), what);
  return coalesce(c10d::OpType::COALESCED, "ring:_reduce_scatter_base", inputs, outputs, [&] {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      _reduce_scatter_base(outputs[i], sources[i], opts);
    }
  });
}

}  // namespace ringcomm
