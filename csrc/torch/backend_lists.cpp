// The collectives of several tensors per rank: lists of tensors, and calls that are coalesced. And
// the barriers, which have none.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "torch/announced.h"
#include "torch/arguments.h"
#include "torch/python.h"

namespace ringcomm {

// run(collectives, flat inputs, flat outputs, timeout)
template <typename CallOptions, typename Run>
RingBackend::WorkPtr RingBackend::carry_out_lists(c10d::OpType type, const char* title,
                                                  const Tensors& inputs, const Tensors& outputs,
                                                  InPlace in_place, const CallOptions& opts,
                                                  Run run) {
  const auto timeout = timeout_or_default(opts.timeout);
  const Writables data = writable(outputs);
  const Tensors flat = readable_apart(inputs, data, in_place, rank_);
  return submit({type, title, inputs, outputs, memory_of(flat, data), timeout, opts.asyncOp},
                [flat, data, run = std::move(run), timeout](Collectives& collectives) {
                  run(collectives, flat, data, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

RingBackend::WorkPtr RingBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  return announced("all_gather", first(inputs), 1, [&] {
    const char* what = "all_gather";
    const Tensors& list = single(outputs, what, "output list");
    const at::Tensor& input = single(inputs, what, "input tensor");
    check_one_per_rank(list.size(), size_, what, "output tensor");
    check_tensor(input, what);
    check_outputs(list, what);
    check_alike(input, list[0], what);
    check_numel(list[rank_].numel(), input.numel(), what, "output tensor of this rank");
    const Elements elements = elements_to_move(input.scalar_type());
    return carry_out_lists(c10d::OpType::ALLGATHER, "ring:all_gather", inputs, list,
                           InPlace::kInputIsPiece, opts,
                           [elements](Collectives& collectives, const Tensors& from,
                                      const Writables& to, auto timeout) {
                             collectives.all_gather(from[0].const_data_ptr(),
                                                    outputs_of(to, elements), elements, timeout);
                           });
  });
}

RingBackend::WorkPtr RingBackend::gather(TensorLists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  return announced("gather", first(inputs), 1, [&] {
    const char* what = "gather";
    const at::Tensor& input = single(inputs, what, "input tensor");
    check_root(opts.rootRank, size_, what);
    check_tensor(input, what);
    const Tensors list = list_of_root(outputs, {rank_, size_}, opts.rootRank, what, "output");
    check_outputs(list, what);
    for (const at::Tensor& output : list) {
      check_alike(input, output, what);
      check_numel(output.numel(), input.numel(), what, "output tensor");
    }
    const Elements elements = elements_to_move(input.scalar_type());
    return carry_out_lists(
        c10d::OpType::GATHER, "ring:gather", inputs, list, InPlace::kInputIsPiece, opts,
        [elements, root = static_cast<int>(opts.rootRank)](
            Collectives& collectives, const Tensors& from, const Writables& to, auto timeout) {
          std::vector<void*> pointers;
          for (const Writable& output : to) pointers.push_back(output.flat().data_ptr());
          collectives.gather(from[0].const_data_ptr(), pointers, elements.count(from[0]), elements,
                             root, timeout);
        });
  });
}

RingBackend::WorkPtr RingBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                     const c10d::GatherOptions& opts) {
  return announced("gather_into_tensor", input, 1, [&] {
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
  });
}

RingBackend::WorkPtr RingBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ScatterOptions& opts) {
  return announced("scatter", first(outputs), 1, [&] {
    const char* what = "scatter";
    const at::Tensor& output = single(outputs, what, "output tensor");
    check_root(opts.rootRank, size_, what);
    check_output(output, what);
    const Tensors list = list_of_root(inputs, {rank_, size_}, opts.rootRank, what, "input");
    check_list(list, what);
    for (const at::Tensor& input : list) {
      check_alike(input, output, what);
      check_numel(input.numel(), output.numel(), what, "input tensor");
    }
    const Elements elements = elements_to_move(output.scalar_type());
    return carry_out_lists(
        c10d::OpType::SCATTER, "ring:scatter", list, outputs, InPlace::kOutputIsPiece, opts,
        [elements, root = static_cast<int>(opts.rootRank)](
            Collectives& collectives, const Tensors& from, const Writables& to, auto timeout) {
          std::vector<const void*> pointers;
          for (const at::Tensor& input : from) pointers.push_back(input.const_data_ptr());
          const at::Tensor& result = to[0].flat();
          collectives.scatter(pointers, result.data_ptr(), elements.count(result), elements, root,
                              timeout);
        });
  });
}

RingBackend::WorkPtr RingBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  return announced("reduce_scatter", first(outputs), 1, [&] {
    const char* what = "reduce_scatter";
    const at::Tensor& output = single(outputs, what, "output tensor");
    const Tensors& list = single(inputs, what, "input list");
    check_one_per_rank(list.size(), size_, what, "input tensor");
    check_output(output, what);
    check_list(list, what);
    check_alike(list[0], output, what);
    check_numel(output.numel(), list[rank_].numel(), what, "output tensor");
    const Elements elements = elements_to_reduce(output.scalar_type(), opts.reduceOp, what);
    return carry_out_lists(
        c10d::OpType::REDUCE_SCATTER, "ring:reduce_scatter", list, outputs, InPlace::kOutputIsPiece,
        opts,
        [elements, reduce = make_reduce(elements, opts.reduceOp, what)](
            Collectives& collectives, const Tensors& from, const Writables& to, auto timeout) {
          collectives.reduce_scatter(inputs_of(from, elements), to[0].flat().data_ptr(), reduce,
                                     timeout);
        });
  });
}

RingBackend::WorkPtr RingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  return announced("all_to_all", first(inputs), 1, [&] {
    const char* what = "all_to_all";
    check_one_per_rank(inputs.size(), size_, what, "input tensor");
    check_one_per_rank(outputs.size(), size_, what, "output tensor");
    check_list(inputs, what);
    check_outputs(outputs, what);
    check_alike(inputs[0], outputs[0], what);
    const Elements elements = elements_to_move(inputs[0].scalar_type());
    return carry_out_lists(c10d::OpType::ALLTOALL, "ring:all_to_all", inputs, outputs,
                           InPlace::kNever, opts,
                           [elements](Collectives& collectives, const Tensors& from,
                                      const Writables& to, auto timeout) {
                             collectives.all_to_all(inputs_of(from, elements),
                                                    outputs_of(to, elements), elements, timeout);
                           });
  });
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  return announced("all_reduce_coalesced", first(tensors), tensors.size(), [&] {
    check_outputs(tensors, "all_reduce_coalesced");
    return coalesce(c10d::OpType::ALLREDUCE_COALESCED, "ring:all_reduce", tensors, tensors, [&] {
      for (const at::Tensor& tensor : tensors) {
        Tensors one{tensor};
        allreduce(one, opts);
      }
    });
  });
}

RingBackend::WorkPtr RingBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return announced("all_gather_coalesced", first(inputs), inputs.size(), [&] {
    const char* what = "all_gather_coalesced";
    check_one_per_rank(outputs.size(), size_, what, "output list");
    Tensors all;
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "ring: ", what, ": an output list has ",
                        list.size(), " tensors; it must have one per input, ", inputs.size());
      all.insert(all.end(), list.begin(), list.end());
    }
    TensorLists gathered(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      for (const Tensors& list : outputs) gathered[i].push_back(list[i]);
    }
    const Tensors sources = check_coalesced(inputs, gathered, what);
    return coalesce(c10d::OpType::ALLGATHER_COALESCED, "ring:all_gather", inputs, all, [&] {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        TensorLists lists{gathered[i]};
        Tensors one{sources[i]};
        allgather(lists, one, opts);
      }
    });
  });
}

namespace {

// The inputs of calls of one input and one output each, as check_coalesced.
Tensors check_coalesced_pairs(const Tensors& inputs, const Tensors& outputs, const char* what) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ring: ", what, ": got ", outputs.size(),
                    " outputs and ", inputs.size(), " inputs");
  TensorLists lists;
  for (const at::Tensor& output : outputs) lists.push_back({output});
  return check_coalesced(inputs, lists, what);
}

}  // namespace

RingBackend::WorkPtr RingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather_into_tensor_coalesced";
  return announced(what, first(inputs), inputs.size(), [&] {
    Tensors sources = check_coalesced_pairs(inputs, outputs, what);
    return coalesce(c10d::OpType::COALESCED, "ring:_all_gather_base", inputs, outputs, [&] {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        _allgather_base(outputs[i], sources[i], opts);
      }
    });
  });
}

RingBackend::WorkPtr RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const char* what = "reduce_scatter_tensor_coalesced";
  return announced(what, first(outputs), outputs.size(), [&] {
    Tensors sources = check_coalesced_pairs(inputs, outputs, what);
    return coalesce(c10d::OpType::COALESCED, "ring:_reduce_scatter_base", inputs, outputs, [&] {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        _reduce_scatter_base(outputs[i], sources[i], opts);
      }
    });
  });
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& opts) {
  return announced("barrier", {}, 1, [&] {
    const auto timeout = timeout_or_default(opts.timeout);
    if (opts.device && !opts.device->is_cpu()) {
      const c10::impl::VirtualGuardImpl device(opts.device->type());
      device.synchronizeStream(device.getStream(*opts.device));
    }
    return submit({c10d::OpType::BARRIER, "ring:barrier", {}, {}, {}, timeout, opts.asyncOp},
                  [host = communicator_, timeout](Collectives&) { host->barrier(timeout); });
  });
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  check_usable();
  if (std::exchange(estimate_, std::nullopt)) refuse_in_estimate("monitoredBarrier");
  const CallGuard inside;
  const auto timeout = opts.timeout == c10d::kUnsetTimeout
                           ? timeout_or_default({})
                           : bounded(opts.timeout) + bounded(extension_->now());
  const Report report = observer_->collective(c10d::OpType::BARRIER, {}, {}, timeout);
  const auto extension = extension_->claim();
  report.started();
  with_reported_errors(report, [&] { communicator_->monitored_barrier(wait_all_ranks, timeout); });
  report.succeeded();
  report.call_completion_hooks();
}

}  // namespace ringcomm
