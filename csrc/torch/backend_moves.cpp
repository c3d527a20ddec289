// Collectives that only move values: all-gather, broadcast, gather, scatter; and the barriers.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/call_guard.h"
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
  check_alike(input, list[0], what);
  check_numel(list[rank_].numel(), input.numel(), what, "output tensor of this rank");
  const Elements elements = elements_to_move(input.scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  const Writables data = writable(list);
  at::Tensor flat = readable(input);
  flat = apart(flat, data, same_place(flat, data[rank_].flat()));
  return submit({c10d::OpType::ALLGATHER, "ring:all_gather", inputs, list, memory_of(flat, data),
                 timeout, opts.asyncOp},
                [flat, data, elements, timeout](Collectives& collectives) {
                  collectives.all_gather(flat.const_data_ptr(), outputs_of(data, elements),
                                         elements, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  if (runs_sync(opts) && try_all_gather_sync(output, input)) {
    return done(c10d::OpType::_ALLGATHER_BASE, output);
  }
  const char* what = "all_gather_into_tensor";
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
  check_numel(output.numel(), input.numel() * size_, what, "output tensor");
  const Elements elements = elements_to_move(input.scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  const Writable data(output, false);
  at::Tensor flat = readable(input);
  flat = apart(flat, {data}, is_piece(data.flat(), flat, rank_));
  return submit({c10d::OpType::_ALLGATHER_BASE,
                 "ring:_all_gather_base",
                 {input},
                 {output},
                 memory_of(flat, data),
                 timeout,
                 opts.asyncOp},
                [flat, data, elements, timeout](Collectives& collectives) {
                  collectives.all_gather(
                      flat.const_data_ptr(),
                      pieces<Output>(data.flat(), elements, collectives.world_size()), elements,
                      timeout);
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
}

RingBackend::WorkPtr RingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather_into_tensor_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ring: ", what, ": got ", outputs.size(),
                    " outputs and ", inputs.size(), " inputs");
  Tensors sources = check_coalesced(inputs, one_each(outputs), what);
  return coalesce(c10d::OpType::COALESCED, "ring:_all_gather_base", inputs, outputs, [&] {
    for (std::size_t i = 0; i < outputs.size(); ++i) _allgather_base(outputs[i], sources[i], opts);
  });
}

RingBackend::WorkPtr RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const char* what = "broadcast";
  const at::Tensor& tensor = single(tensors, what, "tensor");
  if (runs_sync(opts) && try_broadcast_sync(tensor, static_cast<int>(opts.rootRank))) {
    return done(c10d::OpType::BROADCAST, tensor);
  }
  check_tensor(tensor, what);
  check_root(opts.rootRank, size_, what);
  if (opts.rootRank != rank_) check_output(tensor, what);
  const Elements elements = elements_to_move(tensor.scalar_type());
  const int root = static_cast<int>(opts.rootRank);
  const Writable data(tensor, /*needs_contents=*/rank_ == root);
  const auto timeout = timeout_or_default(opts.timeout);
  return submit({c10d::OpType::BROADCAST, "ring:broadcast", tensors, tensors, memory_of(data),
                 timeout, opts.asyncOp},
                [data, elements, root, timeout](Collectives& collectives) {
                  collectives.broadcast(data.flat().data_ptr(), elements.count(data.flat()),
                                        elements, root, timeout);
                  if (collectives.rank() != root) data.commit();
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
    check_alike(input, list[0], what);
    for (const at::Tensor& output : list) {
      check_numel(output.numel(), input.numel(), what, "output tensor");
    }
  } else {
    check_root_only(outputs, rank_, opts.rootRank, what, "output");
  }
  const Elements elements = elements_to_move(input.scalar_type());
  const int root = static_cast<int>(opts.rootRank);
  const auto timeout = timeout_or_default(opts.timeout);
  const Writables data = writable(list);
  at::Tensor flat = readable(input);
  flat = apart(flat, data, !data.empty() && same_place(flat, data[rank_].flat()));
  return submit({c10d::OpType::GATHER, "ring:gather", inputs, list, memory_of(flat, data), timeout,
                 opts.asyncOp},
                [flat, data, elements, root, timeout](Collectives& collectives) {
                  std::vector<void*> pointers;
                  for (const Writable& output : data) {
                    pointers.push_back(output.flat().data_ptr());
                  }
                  collectives.gather(flat.const_data_ptr(), pointers, elements.count(flat),
                                     elements, root, timeout);
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
    check_alike(list[0], output, what);
    for (const at::Tensor& input : list) {
      check_numel(input.numel(), output.numel(), what, "input tensor");
    }
  } else {
    check_root_only(inputs, rank_, opts.rootRank, what, "input");
  }
  const Elements elements = elements_to_move(output.scalar_type());
  const int root = static_cast<int>(opts.rootRank);
  const auto timeout = timeout_or_default(opts.timeout);
  const Writable data(output, false);
  const Tensors flat = readable_apart(list, data, rank_);
  return submit({c10d::OpType::SCATTER, "ring:scatter", list, outputs, memory_of(flat, data),
                 timeout, opts.asyncOp},
                [flat, data, elements, root, timeout](Collectives& collectives) {
                  std::vector<const void*> pointers;
                  for (const at::Tensor& input : flat) pointers.push_back(input.const_data_ptr());
                  collectives.scatter(pointers, data.flat().data_ptr(), elements.count(data.flat()),
                                      elements, root, timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& opts) {
  const auto timeout = timeout_or_default(opts.timeout);
  if (opts.device && !opts.device->is_cpu()) {
    const c10::impl::VirtualGuardImpl device(opts.device->type());
    device.synchronizeStream(device.getStream(*opts.device));
  }
  return submit({c10d::OpType::BARRIER, "ring:barrier", {}, {}, {}, timeout, opts.asyncOp},
                [host = communicator_, timeout](Collectives&) { host->barrier(timeout); });
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  check_usable();
  if (std::exchange(estimate_, std::nullopt)) refuse_in_estimate("monitoredBarrier");
  const CallGuard inside;
  const auto timeout = opts.timeout == c10d::kUnsetTimeout
                           ? timeout_or_default({})
                           : bounded(opts.timeout) + bounded(hooks_->extension->now());
  const Report report = report_of(flight_->collective(c10d::OpType::BARRIER, {}, {}, timeout));
  const auto extension = report.claim_extension();
  report.started();
  with_reported_errors(report, [&] { communicator_->monitored_barrier(wait_all_ranks, timeout); });
  report.succeeded();
  report.call_completion_hooks();
}

}  // namespace ringcomm
