// The collectives: check the arguments, bring the tensors into shape, hand them to the
// communicator.
#include <numeric>
#include <utility>

#include "torch/backend.h"
#include "torch/errors.h"
#include "torch/sparse.h"

namespace ringcomm {
namespace {

using Tensors = RingBackend::Tensors;
using TensorLists = RingBackend::TensorLists;
using Writables = std::vector<Writable>;

// The one tensor, or the one list of tensors, that c10d's plural arguments hold.
template <typename T>
const T& single(const std::vector<T>& items, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(items.size() == 1, "ring: ", what, ": takes one ", argument, " per rank, got ",
                    items.size());
  return items[0];
}

void check_one_per_rank(std::size_t number, int world_size, const char* what,
                        const char* argument) {
  TORCH_CHECK_VALUE(number == static_cast<std::size_t>(world_size), "ring: ", what, ": takes ",
                    world_size, " ", argument, "s, one per rank, got ", number);
}

void check_root(int64_t root, int world_size, const char* what) {
  TORCH_CHECK_VALUE(root >= 0 && root < world_size, "ring: ", what, ": the root is rank ", root,
                    "; it must be 0 to ", world_size - 1);
}

void check_same_dtype(const at::Tensor& input, const at::Tensor& output, const char* what) {
  TORCH_CHECK_VALUE(input.scalar_type() == output.scalar_type(), "ring: ", what,
                    ": the input has dtype=", input.scalar_type(),
                    " and the output dtype=", output.scalar_type());
}

void check_numel(int64_t numel, int64_t wanted, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(numel == wanted, "ring: ", what, ": the ", argument, " has ", numel,
                    " elements; it must have ", wanted);
}

void check_list(const Tensors& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(tensor, what);
    check_same_dtype(tensors[0], tensor, what);
  }
}

Writables writable(const Tensors& tensors) {
  Writables result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.emplace_back(tensor, false);
  return result;
}

Tensors readable(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.push_back(ringcomm::readable(tensor));
  return result;
}

std::vector<Input> inputs_of(const Tensors& flat, const Elements& elements) {
  std::vector<Input> inputs;
  for (const at::Tensor& tensor : flat) {
    inputs.push_back({tensor.const_data_ptr(), elements.count(tensor)});
  }
  return inputs;
}

std::vector<Output> outputs_of(const Writables& writables, const Elements& elements) {
  std::vector<Output> outputs;
  for (const Writable& writable : writables) {
    outputs.push_back({writable.flat().data_ptr(), elements.count(writable.flat())});
  }
  return outputs;
}

// Equal pieces of a flat tensor, one per rank.
template <typename Block>
std::vector<Block> pieces(const at::Tensor& flat, const Elements& elements, int world_size) {
  const std::size_t count = elements.count(flat) / world_size;
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  std::vector<Block> blocks;
  for (int r = 0; r < world_size; ++r) {
    blocks.push_back({data + r * count * element_size(elements.dtype), count});
  }
  return blocks;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_begin = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const std::byte*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

RingBackend::WorkPtr RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const char* what = "all_reduce";
  const at::Tensor& tensor = single(tensors, what, "tensor");
  if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
  check_tensor(tensor, what);
  const Elements elements = elements_to_reduce(tensor.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  Writable data(tensor, true);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch(
      {c10d::OpType::ALLREDUCE, "ring:all_reduce", tensors, tensors, timeout, opts.asyncOp},
      [communicator = communicator_, data, elements, reduce, timeout] {
        void* buffer = data.flat().data_ptr();
        communicator->all_reduce(buffer, buffer, elements.count(data.flat()), reduce, timeout);
        data.commit();
      });
}

bool RingBackend::all_reduce_now(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const char* what = "all_reduce";
  check_tensor(tensor, what);
  Writable data(tensor, true);
  if (coalescing_ || !data.flat().is_same(tensor)) return false;
  const Elements elements = elements_to_reduce(tensor.scalar_type(), op, what);
  const Reduce reduce = make_reduce(elements, op, what);
  if (!queue_->try_enter()) return false;
  ++sequence_;
  std::exception_ptr error;
  try {
    void* buffer = tensor.data_ptr();
    communicator_->all_reduce(buffer, buffer, elements.count(tensor), reduce, options_->timeout);
  } catch (...) {
    error = std::current_exception();
  }
  queue_->leave();
  if (error) rethrow_for_torch(error);
  return true;
}

RingBackend::WorkPtr RingBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = single(tensors, "all_reduce", "tensor");
  check_sparse(tensor, opts.reduceOp);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::_ALLREDUCE_SPARSE, "ring:sparse_all_reduce", tensors, tensors,
                 timeout, opts.asyncOp},
                [communicator = communicator_, tensor, timeout] {
                  all_reduce_sparse(*communicator, tensor, timeout);
                });
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  check_list(tensors, "all_reduce_coalesced");
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
  check_tensor(tensor, what);
  check_root(opts.rootRank, size_, what);
  const Elements elements = elements_to_reduce(tensor.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  Writable data(tensor, true);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::REDUCE, "ring:reduce", tensors, tensors, timeout, opts.asyncOp},
                [communicator = communicator_, data, elements, reduce,
                 root = static_cast<int>(opts.rootRank), timeout] {
                  void* buffer = data.flat().data_ptr();
                  communicator->reduce(buffer, buffer, elements.count(data.flat()), reduce, root,
                                       timeout);
                  if (communicator->rank() == root) data.commit();
                });
}

RingBackend::WorkPtr RingBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  const char* what = "reduce_scatter";
  const at::Tensor& output = single(outputs, what, "output tensor");
  const Tensors& list = single(inputs, what, "input list");
  check_one_per_rank(list.size(), size_, what, "input tensor");
  check_tensor(output, what);
  check_list(list, what);
  check_same_dtype(list[0], output, what);
  check_numel(output.numel(), list[rank_].numel(), what, "output tensor");
  const Elements elements = elements_to_reduce(output.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch(
      {c10d::OpType::REDUCE_SCATTER, "ring:reduce_scatter", list, outputs, timeout, opts.asyncOp},
      [communicator = communicator_, flat = readable(list), data = Writable(output, false),
       elements, reduce, timeout] {
        communicator->reduce_scatter(inputs_of(flat, elements), data.flat().data_ptr(), reduce,
                                     timeout);
        data.commit();
      });
}

RingBackend::WorkPtr RingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  const char* what = "reduce_scatter_tensor";
  check_tensor(output, what);
  check_tensor(input, what);
  check_same_dtype(input, output, what);
  check_numel(input.numel(), output.numel() * size_, what, "input tensor");
  const Elements elements = elements_to_reduce(output.scalar_type(), opts.reduceOp, what);
  const Reduce reduce = make_reduce(elements, opts.reduceOp, what);
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::_REDUCE_SCATTER_BASE,
                 "ring:_reduce_scatter_base",
                 {input},
                 {output},
                 timeout,
                 opts.asyncOp},
                [communicator = communicator_, flat = ringcomm::readable(input),
                 data = Writable(output, false), elements, reduce, timeout] {
                  communicator->reduce_scatter(
                      pieces<Input>(flat, elements, communicator->world_size()),
                      data.flat().data_ptr(), reduce, timeout);
                  data.commit();
                });
}

RingBackend::WorkPtr RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ring: reduce_scatter_tensor_coalesced: got ",
                    outputs.size(), " outputs and ", inputs.size(), " inputs");
  return coalesce(c10d::OpType::COALESCED, "ring:_reduce_scatter_base", inputs, outputs, [&] {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      _reduce_scatter_base(outputs[i], inputs[i], opts);
    }
  });
}

RingBackend::WorkPtr RingBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather";
  const Tensors& list = single(outputs, what, "output list");
  const at::Tensor& input = single(inputs, what, "input tensor");
  check_one_per_rank(list.size(), size_, what, "output tensor");
  check_tensor(input, what);
  check_list(list, what);
  check_same_dtype(input, list[0], what);
  check_numel(list[rank_].numel(), input.numel(), what, "output tensor of this rank");
  const Elements elements = elements_to_move(input.scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::ALLGATHER, "ring:all_gather", inputs, list, timeout, opts.asyncOp},
                [communicator = communicator_, flat = ringcomm::readable(input),
                 data = writable(list), elements, timeout] {
                  communicator->all_gather(flat.const_data_ptr(), outputs_of(data, elements),
                                           elements.dtype, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  const char* what = "all_gather_into_tensor";
  check_tensor(output, what);
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
                [communicator = communicator_, flat = ringcomm::readable(input),
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
    check_list(list, what);
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
                [communicator = communicator_, flat = ringcomm::readable(input),
                 data = writable(list), elements, root, timeout] {
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
    check_tensor(output, "gather_into_tensor");
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
  check_tensor(output, what);
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

RingBackend::WorkPtr RingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  const char* what = "all_to_all";
  check_one_per_rank(inputs.size(), size_, what, "input tensor");
  check_one_per_rank(outputs.size(), size_, what, "output tensor");
  check_list(inputs, what);
  check_list(outputs, what);
  check_same_dtype(inputs[0], outputs[0], what);
  Tensors flat = readable(inputs);
  for (at::Tensor& input : flat) {
    for (const at::Tensor& output : outputs) {
      if (overlap(input, output)) input = input.clone();
    }
  }
  const Elements elements = elements_to_move(inputs[0].scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  return launch({c10d::OpType::ALLTOALL, "ring:all_to_all", inputs, outputs, timeout, opts.asyncOp},
                [communicator = communicator_, flat, data = writable(outputs), elements, timeout] {
                  communicator->all_to_all(inputs_of(flat, elements), outputs_of(data, elements),
                                           elements.dtype, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

namespace {

// Where each rank's rows of dimension 0 begin and how many elements they have. No splits: equal.
template <typename Block>
std::vector<Block> split_rows(const at::Tensor& flat, const std::vector<int64_t>& splits,
                              const Elements& elements, int world_size) {
  if (splits.empty()) return pieces<Block>(flat, elements, world_size);
  const std::size_t row = flat.size(0) == 0 ? 0 : elements.count(flat) / flat.size(0);
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  std::vector<Block> blocks;
  for (const int64_t rows : splits) {
    blocks.push_back({data, rows * row});
    data += rows * row * element_size(elements.dtype);
  }
  return blocks;
}

void check_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits, int world_size,
                  const char* what, const char* argument) {
  const int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % world_size == 0, "ring: ", what, ": without split sizes, the ",
                      argument, "'s dimension 0, ", rows, ", must be divisible by the world size, ",
                      world_size);
    return;
  }
  check_one_per_rank(splits.size(), world_size, what, "split size");
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "ring: ", what, ": a split size of the ", argument, " is ",
                      split);
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, "ring: ", what, ": the split sizes of the ", argument,
                    " add up to ", sum, "; its dimension 0 is ", rows);
}

}  // namespace

RingBackend::WorkPtr RingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  const char* what = "all_to_all_single";
  check_tensor(output, what);
  check_tensor(input, what);
  check_same_dtype(input, output, what);
  check_splits(output, output_splits, size_, what, "output tensor");
  check_splits(input, input_splits, size_, what, "input tensor");
  const Elements elements = elements_to_move(input.scalar_type());
  at::Tensor flat = ringcomm::readable(input);
  if (overlap(flat, output)) flat = flat.clone();
  const auto timeout = timeout_or_default(opts.timeout);
  return launch(
      {c10d::OpType::ALLTOALL_BASE, "ring:all_to_all", {input}, {output}, timeout, opts.asyncOp},
      [communicator = communicator_, flat, data = Writable(output, false), elements, output_splits,
       input_splits, timeout] {
        const int n = communicator->world_size();
        communicator->all_to_all(split_rows<Input>(flat, input_splits, elements, n),
                                 split_rows<Output>(data.flat(), output_splits, elements, n),
                                 elements.dtype, timeout);
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
