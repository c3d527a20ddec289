// The collectives. Each is prepared once: its arguments are checked, and a Prepared says what it
// does. Two drivers carry out what is prepared:
//
//   run_sync    on the thread that calls, where nothing has to be copied and nothing is queued
//   carry_out   by a Work: tensors are brought into shape, and the queue or a device has the rest
//
// Those of several tensors per rank: backend_lists.cpp.
#include "torch/announced.h"
#include "torch/arguments.h"
#include "torch/python.h"
#include "torch/sparse.h"

namespace ringcomm {
namespace {

// One tensor in and one out. In place, both are the same object.
template <typename Run>
struct Prepared {
  c10d::OpType type;
  const char* title;  // for the profiler
  const at::Tensor& input;
  const at::Tensor& output;
  InPlace in_place;
  Run run;  // run(collectives, flat input, flat output, timeout)
  // In place, this rank's values may not count, or stay as they are.
  bool reads = true;
  bool writes = true;
  bool has_result = true;  // here
};

auto prepare_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const char* what = "all_reduce";
  check_output(tensor, what);
  const Elements elements = elements_to_reduce(tensor.scalar_type(), op, what);
  return Prepared{
      c10d::OpType::ALLREDUCE,
      "ring:all_reduce",
      tensor,
      tensor,
      InPlace::kAlways,
      [elements, reduce = make_reduce(elements, op, what)](auto& collectives, const at::Tensor&,
                                                           const at::Tensor& buffer, auto timeout) {
        void* data = buffer.data_ptr();
        collectives.all_reduce(data, data, elements.count(buffer), reduce, timeout);
      }};
}

auto prepare_reduce(const at::Tensor& tensor, int64_t root, const c10d::ReduceOp& op, Place place) {
  const char* what = "reduce";
  check_tensor(tensor, what);
  check_root(root, place.world_size, what);
  const bool is_root = root == place.rank;
  if (is_root) check_output(tensor, what);
  const Elements elements = elements_to_reduce(tensor.scalar_type(), op, what);
  return Prepared{
      c10d::OpType::REDUCE,
      "ring:reduce",
      tensor,
      tensor,
      InPlace::kAlways,
      [elements, reduce = make_reduce(elements, op, what), root = static_cast<int>(root)](
          auto& collectives, const at::Tensor&, const at::Tensor& buffer, auto timeout) {
        void* data = buffer.data_ptr();
        collectives.reduce(data, data, elements.count(buffer), reduce, root, timeout);
      },
      /*reads=*/true,
      /*writes=*/is_root,
      /*has_result=*/is_root};
}

auto prepare_broadcast(const at::Tensor& tensor, int64_t root, Place place) {
  const char* what = "broadcast";
  check_tensor(tensor, what);
  check_root(root, place.world_size, what);
  const bool is_root = root == place.rank;
  if (!is_root) check_output(tensor, what);
  return Prepared{
      c10d::OpType::BROADCAST,
      "ring:broadcast",
      tensor,
      tensor,
      InPlace::kAlways,
      [elements = elements_to_move(tensor.scalar_type()), root = static_cast<int>(root)](
          auto& collectives, const at::Tensor&, const at::Tensor& buffer, auto timeout) {
        collectives.broadcast(buffer.data_ptr(), elements.count(buffer), elements, root, timeout);
      },
      /*reads=*/is_root,
      /*writes=*/!is_root};
}

void check_pair(const at::Tensor& output, const at::Tensor& input, const char* what) {
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
}

auto prepare_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            const c10d::ReduceOp& op, Place place) {
  const char* what = "reduce_scatter_tensor";
  check_pair(output, input, what);
  check_numel(input.numel(), output.numel() * place.world_size, what, "input tensor");
  const Elements elements = elements_to_reduce(output.scalar_type(), op, what);
  return Prepared{
      c10d::OpType::_REDUCE_SCATTER_BASE,
      "ring:_reduce_scatter_base",
      input,
      output,
      InPlace::kOutputIsPiece,
      [elements, reduce = make_reduce(elements, op, what), n = place.world_size](
          auto& collectives, const at::Tensor& from, const at::Tensor& to, auto timeout) {
        collectives.reduce_scatter(pieces<Input>(from, elements, n), to.data_ptr(), reduce,
                                   timeout);
      }};
}

auto prepare_all_gather(const at::Tensor& output, const at::Tensor& input, Place place) {
  const char* what = "all_gather_into_tensor";
  check_pair(output, input, what);
  check_numel(output.numel(), input.numel() * place.world_size, what, "output tensor");
  return Prepared{
      c10d::OpType::_ALLGATHER_BASE,
      "ring:_all_gather_base",
      input,
      output,
      InPlace::kInputIsPiece,
      [elements = elements_to_move(input.scalar_type()), n = place.world_size](
          auto& collectives, const at::Tensor& from, const at::Tensor& to, auto timeout) {
        collectives.all_gather(from.const_data_ptr(), pieces<Output>(to, elements, n), elements,
                               timeout);
      }};
}

// Where each rank's rows of dimension 0 begin and how many elements they have. No splits: equal.
template <typename Block>
std::vector<Block> split_rows(const at::Tensor& flat, const std::vector<int64_t>& splits,
                              const Elements& elements, int64_t rows, int world_size) {
  if (splits.empty()) return pieces<Block>(flat, elements, world_size);
  const std::size_t row = rows == 0 ? 0 : elements.count(flat) / rows;
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  std::vector<Block> blocks;
  for (const int64_t split : splits) {
    blocks.push_back({data, split * row});
    data += split * row * element_size(elements.dtype);
  }
  return blocks;
}

void check_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits, int world_size,
                  const char* what, const char* argument) {
  if (splits.empty()) return check_equal_rows(tensor, world_size, what, argument);
  const int64_t rows = num_rows(tensor);
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

// `output_splits` and `input_splits` are copied only if there are some.
auto prepare_all_to_all(const at::Tensor& output, const at::Tensor& input,
                        const std::vector<int64_t>& output_splits,
                        const std::vector<int64_t>& input_splits, Place place) {
  const char* what = "all_to_all_single";
  check_pair(output, input, what);
  check_splits(output, output_splits, place.world_size, what, "output tensor");
  check_splits(input, input_splits, place.world_size, what, "input tensor");
  return Prepared{
      c10d::OpType::ALLTOALL_BASE,
      "ring:all_to_all",
      input,
      output,
      InPlace::kNever,
      [elements = elements_to_move(input.scalar_type()), output_splits, input_splits,
       output_rows = num_rows(output), input_rows = num_rows(input), n = place.world_size](
          auto& collectives, const at::Tensor& from, const at::Tensor& to, auto timeout) {
        collectives.all_to_all(split_rows<Input>(from, input_splits, elements, input_rows, n),
                               split_rows<Output>(to, output_splits, elements, output_rows, n),
                               elements, timeout);
      }};
}

}  // namespace

template <typename Body>
bool RingBackend::at_once(c10d::OpType type, const at::Tensor* input, const at::Tensor* output,
                          bool has_result, Body body) {
  if (!needs_no_work()) return false;
  check_usable();
  const CallGuard inside;
  if (!queue_->try_enter()) return false;
  Queue::Turn turn(*queue_);
  ++sequence_;
  const std::chrono::milliseconds timeout = options_->timeout;
  FlightMark mark;
  const std::exception_ptr error = error_of([&] {
    communicator_->settled(1, timeout, [&] {
      mark = observer_->begun(type, input, output, timeout);
      body(*communicator_, timeout);
    });
    if (has_result) note_result(mark, {output, 1});
  });
  PendingCalls::note_known();
  turn.leave();
  if (error) {
    if (mark.recorder == nullptr) observer_->refused();  // it could not be recorded
    std::rethrow_exception(observer_->failed({&mark, 1}, error));
  }
  mark.complete();
  return true;
}

template <typename Call>
bool RingBackend::run_sync(const Call& call) {
  const auto& [type, title, input, output, in_place, run, reads, writes, has_result] = call;
  if (!can_stay(output)) return false;
  if (in_place != InPlace::kAlways) {
    if (!can_stay(input)) return false;
    if (!lies_in_place(in_place, input, output, rank_) && overlap(input, output)) return false;
  }
  if (reads) check_values({&input, 1}, type);
  return at_once(type, &input, &output, has_result, [&](Communicator& communicator, auto timeout) {
    run(communicator, input, output, timeout);
  });
}

template <typename Call, typename CallOptions>
RingBackend::WorkPtr RingBackend::carry_out(Call call, const CallOptions& opts) {
  if (runs_sync(opts) && run_sync(call)) return done(call.type, call.output);
  const bool in_place = call.in_place == InPlace::kAlways;
  const Writable data(call.output, /*needs_contents=*/in_place && call.reads);
  at::Tensor flat = data.flat();
  Tensors memory{flat};
  if (!in_place) {
    flat = readable(call.input);
    flat = apart(flat, {data}, lies_in_place(call.in_place, flat, data.flat(), rank_));
    memory.push_back(flat);
  }
  const auto timeout = timeout_or_default(opts.timeout);
  Operation operation{call.type,         call.title, {call.input}, {call.output},
                      std::move(memory), timeout,    opts.asyncOp};
  operation.reads = call.reads;
  operation.has_result = call.has_result;
  operation.may_be_tried = true;
  return submit(std::move(operation), [flat, data, run = std::move(call.run), writes = call.writes,
                                       timeout](Collectives& collectives) {
    run(collectives, flat, data.flat(), timeout);
    if (writes) data.commit();
  });
}

RingBackend::WorkPtr RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return announced("all_reduce", first(tensors), 1, [&] {
    const at::Tensor& tensor = single(tensors, "all_reduce", "tensor");
    return tensor.is_sparse() ? allreduce_sparse(tensors, opts)
                              : carry_out(prepare_all_reduce(tensor, opts.reduceOp), opts);
  });
}

RingBackend::WorkPtr RingBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  return announced("all_reduce", first(tensors), 1, [&] {
    const at::Tensor& tensor = single(tensors, "all_reduce", "tensor");
    check_sparse(tensor, opts.reduceOp);
    const auto timeout = timeout_or_default(opts.timeout);
    return submit({c10d::OpType::_ALLREDUCE_SPARSE, "ring:sparse_all_reduce", tensors, tensors,
                   tensors, timeout, opts.asyncOp, kSparseCalls},
                  [tensor, timeout](Collectives& collectives) {
                    all_reduce_sparse(collectives, tensor, timeout);
                  });
  });
}

RingBackend::WorkPtr RingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return announced("reduce", first(tensors), 1, [&] {
    const at::Tensor& tensor = single(tensors, "reduce", "tensor");
    return carry_out(prepare_reduce(tensor, opts.rootRank, opts.reduceOp, {rank_, size_}), opts);
  });
}

RingBackend::WorkPtr RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return announced("broadcast", first(tensors), 1, [&] {
    const at::Tensor& tensor = single(tensors, "broadcast", "tensor");
    return carry_out(prepare_broadcast(tensor, opts.rootRank, {rank_, size_}), opts);
  });
}

RingBackend::WorkPtr RingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  return announced("reduce_scatter_tensor", output, 1, [&] {
    return carry_out(prepare_reduce_scatter(output, input, opts.reduceOp, {rank_, size_}), opts);
  });
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  return announced("all_gather_into_tensor", input, 1, [&] {
    return carry_out(prepare_all_gather(output, input, {rank_, size_}), opts);
  });
}

RingBackend::WorkPtr RingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  return announced("all_to_all_single", input, 1, [&] {
    return carry_out(prepare_all_to_all(output, input, output_splits, input_splits, {rank_, size_}),
                     opts);
  });
}

bool RingBackend::try_all_reduce_sync(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return announced("all_reduce", tensor, 1,
                   [&] { return run_sync(prepare_all_reduce(tensor, op)); });
}

bool RingBackend::try_reduce_sync(const at::Tensor& tensor, int root, const c10d::ReduceOp& op) {
  return announced("reduce", tensor, 1,
                   [&] { return run_sync(prepare_reduce(tensor, root, op, {rank_, size_})); });
}

bool RingBackend::try_broadcast_sync(const at::Tensor& tensor, int root) {
  return announced("broadcast", tensor, 1,
                   [&] { return run_sync(prepare_broadcast(tensor, root, {rank_, size_})); });
}

bool RingBackend::try_reduce_scatter_sync(const at::Tensor& output, const at::Tensor& input,
                                          const c10d::ReduceOp& op) {
  return announced("reduce_scatter_tensor", output, 1, [&] {
    return run_sync(prepare_reduce_scatter(output, input, op, {rank_, size_}));
  });
}

bool RingBackend::try_all_gather_sync(const at::Tensor& output, const at::Tensor& input) {
  return announced("all_gather_into_tensor", input, 1,
                   [&] { return run_sync(prepare_all_gather(output, input, {rank_, size_})); });
}

bool RingBackend::try_all_to_all_sync(const at::Tensor& output, const at::Tensor& input) {
  return announced("all_to_all_single", input, 1, [&] {
    return run_sync(prepare_all_to_all(output, input, {}, {}, {rank_, size_}));
  });
}

bool RingBackend::try_barrier_sync() {
  return announced("barrier", {}, 1, [&] {
    return at_once(c10d::OpType::BARRIER, nullptr, nullptr, /*has_result=*/false,
                   [](Communicator& communicator, auto timeout) { communicator.barrier(timeout); });
  });
}

}  // namespace ringcomm
