// The collectives of a Communicator. Each has two ways:
//
//   eager   the input fits into the announcement: everybody announces, everybody reads what it
//           wants from the others' payloads. One exchange, one rounding, no plan.
//   by plan the announcement only compares the calls; then the program of the chosen plan runs.
//
// Which way follows from counts that all ranks know alike; if they do not, their calls differ, and
// the exchange raises that before any data is read.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "communicator.h"

namespace ringcomm {
namespace {

using shm::Deadline;

void copy(void* to, const void* from, std::size_t nbytes) {
  if (nbytes > 0 && to != from) std::memcpy(to, from, nbytes);
}

}  // namespace

void Communicator::all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                              Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kAllReduce, count, reduce, choose(reduce.dtype));
  const Reduction reduction = reduction_of(reduce, world_size());
  if (is_eager(count, reduce.dtype)) {
    std::byte* payload = exchange_.begin(call);
    write_contribution(payload, {input, count}, reduction);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    reduce_payloads(0, {output, count}, reduction);
    exchange_.end();
    return;
  }
  divide(input, output, count, element_size(reduce.dtype), world_size(), chunks_);
  run(call, reduction, deadline);
}

void Communicator::reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce,
                                  Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::size_t total = total_count(inputs);
  Call call = make_call(Collective::kReduceScatter, total, reduce, choose(reduce.dtype));
  call.layout = layout_of(inputs);
  const Reduction reduction = reduction_of(reduce, world_size());
  if (is_eager(total, reduce.dtype)) {
    std::byte* payload = exchange_.begin(call);
    std::size_t nbytes = 0, own_at = 0;
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) own_at = nbytes;
      nbytes += write_contribution(payload + nbytes, inputs[r], reduction);
    }
    exchange_.announce(call);
    exchange_.await_all(deadline);
    reduce_payloads(own_at, {output, inputs[rank()].count}, reduction);
    exchange_.end();
    return;
  }
  chunks_to_reduce_scatter(inputs, output, rank(), chunks_);
  run(call, reduction, deadline);
}

void Communicator::all_gather(const void* input, std::span<const Output> outputs, DType dtype,
                              Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kAllGather, total_count(outputs), dtype, choose(dtype));
  call.layout = layout_of(outputs);
  std::size_t most = 0;
  for (const Output& output : outputs) most = std::max(most, output.count);
  const std::size_t nbytes = outputs[rank()].count * element_size(dtype);
  if (is_eager(most, dtype)) {
    copy(exchange_.begin(call), input, nbytes);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    for (int r = 0; r < world_size(); ++r) {
      copy(outputs[r].data, exchange_.payload_of(r), outputs[r].count * element_size(dtype));
    }
    exchange_.end();
    return;
  }
  chunks_to_all_gather(input, outputs, rank(), chunks_);
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

void Communicator::broadcast(void* data, std::size_t count, DType dtype, int root,
                             Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kBroadcast, count, dtype, choose(dtype));
  set_root(call, root, world_size());
  if (is_eager(count, dtype)) {
    const std::size_t nbytes = count * element_size(dtype);
    std::byte* payload = exchange_.begin(call);
    if (rank() == root) copy(payload, data, nbytes);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    if (rank() != root) copy(data, exchange_.payload_of(root), nbytes);
    exchange_.end();
    return;
  }
  divide(data, data, count, element_size(dtype), 1, chunks_);
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

void Communicator::reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                          int root, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kReduce, count, reduce, choose(reduce.dtype));
  set_root(call, root, world_size());
  const Reduction reduction = reduction_of(reduce, world_size());
  if (is_eager(count, reduce.dtype)) {
    std::byte* payload = exchange_.begin(call);
    write_contribution(payload, {input, count}, reduction);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    if (rank() == root) reduce_payloads(0, {output, count}, reduction);
    exchange_.end();
    return;
  }
  const int num_chunks = program(call).num_chunks;
  divide(input, rank() == root ? output : nullptr, count, element_size(reduce.dtype), num_chunks,
         chunks_);
  run(call, reduction, deadline);
}

void Communicator::gather(const void* input, std::span<void* const> outputs, std::size_t count,
                          DType dtype, int root, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::size_t nbytes = count * element_size(dtype);
  Call call = make_call(Collective::kGather, count, dtype, choose(dtype));
  set_root(call, root, world_size());
  if (is_eager(count, dtype)) {
    copy(exchange_.begin(call), input, nbytes);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    if (rank() == root) {
      for (int r = 0; r < world_size(); ++r) copy(outputs[r], exchange_.payload_of(r), nbytes);
    }
    exchange_.end();
    return;
  }
  chunks_to_gather(input, rank() == root ? outputs : std::span<void* const>{}, count, rank(),
                   world_size(), chunks_);
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

void Communicator::scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                           DType dtype, int root, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::size_t nbytes = count * element_size(dtype);
  Call call = make_call(Collective::kScatter, count, dtype, choose(dtype));
  set_root(call, root, world_size());
  if (is_eager(count * world_size(), dtype)) {
    std::byte* payload = exchange_.begin(call);
    if (rank() == root) {
      for (int r = 0; r < world_size(); ++r) copy(payload + r * nbytes, inputs[r], nbytes);
    }
    exchange_.announce(call);
    exchange_.await_all(deadline);
    copy(output, exchange_.payload_of(root) + rank() * nbytes, nbytes);
    exchange_.end();
    return;
  }
  chunks_to_scatter(rank() == root ? inputs : std::span<const void* const>{}, output, count, rank(),
                    world_size(), chunks_);
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

// Every payload begins with two counts per rank: what this rank sends it, and what it expects from
// it. Whether the data follows is each rank's own choice, made by its own total; what did not
// travel that way goes by plan, in which the rest has no elements.
void Communicator::all_to_all(std::span<const Input> inputs, std::span<const Output> outputs,
                              DType dtype, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const int n = world_size();
  const std::size_t table_nbytes = 2 * n * sizeof(std::uint64_t);
  const std::size_t total_nbytes = total_count(inputs) * element_size(dtype);
  Call call = make_call(Collective::kAllToAll, 0, dtype, choose(dtype));

  std::byte* payload = exchange_.begin(call);
  auto* counts = reinterpret_cast<std::uint64_t*>(payload);
  for (int r = 0; r < n; ++r) {
    counts[r] = inputs[r].count;
    counts[n + r] = outputs[r].count;
  }
  const bool eager = table_nbytes + total_nbytes <= group_.geometry().eager_nbytes;
  std::size_t nbytes = table_nbytes;
  for (int r = 0; eager && r < n; ++r) {
    copy(payload + nbytes, inputs[r].data, inputs[r].count * element_size(dtype));
    nbytes += inputs[r].count * element_size(dtype);
  }
  call.eager = eager;
  exchange_.announce(call);
  exchange_.await_all(deadline);
  check_all_to_all(call);

  auto was_eager = [&](int r) { return exchange_.call_of(r).eager != 0; };
  bool all_eager = true;
  for (int r = 0; r < n; ++r) {
    if (!was_eager(r)) {
      all_eager = false;
      continue;
    }
    const auto* theirs = reinterpret_cast<const std::uint64_t*>(exchange_.payload_of(r));
    const std::size_t before = std::accumulate(theirs, theirs + rank(), std::uint64_t{0});
    copy(outputs[r].data, exchange_.payload_of(r) + table_nbytes + before * element_size(dtype),
         outputs[r].count * element_size(dtype));
  }
  if (!all_eager) {
    chunks_to_all_to_all(inputs, outputs, rank(), chunks_);
    for (int r = 0; r < n; ++r) {
      if (eager) chunks_[rank() * n + r] = {};
      if (was_eager(r)) chunks_[r * n + rank()] = {};
    }
    executor_.run(program(call), chunks_, {.dtype = dtype, .op = ReduceOp::kSum}, call, deadline);
  }
  exchange_.end();
}

void Communicator::check_all_to_all(const Call& call) {
  const int n = world_size();
  std::string disagreements;
  for (int from = 0; from < n; ++from) {
    const auto* sent = reinterpret_cast<const std::uint64_t*>(exchange_.payload_of(from));
    for (int to = 0; to < n; ++to) {
      const auto* expected = reinterpret_cast<const std::uint64_t*>(exchange_.payload_of(to)) + n;
      if (sent[to] == expected[from]) continue;
      if (!disagreements.empty()) disagreements += ", ";
      disagreements += "rank " + std::to_string(from) + " has " + std::to_string(sent[to]) +
                       " elements for rank " + std::to_string(to) + ", which expects " +
                       std::to_string(expected[from]);
    }
  }
  if (disagreements.empty()) return;
  exchange_.end();
  throw Error(ErrorKind::kMismatch, "rank " + std::to_string(rank()) + " in all_to_all #" +
                                        std::to_string(call.sequence) + ": " + disagreements +
                                        ". Nothing was sent.");
}

void Communicator::barrier(Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kBarrier, 0, DType::kUInt8, Algorithm::kRing);
  exchange_.begin(call);
  exchange_.announce(call);
  exchange_.await_all(deadline);
  exchange_.end();
}

}  // namespace ringcomm
