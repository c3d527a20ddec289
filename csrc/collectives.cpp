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

using shm::Chunk;
using shm::Deadline;

// FNV-1a over the counts: equal on all ranks exactly if the counts are (to 64 bits of doubt).
template <typename Blocks>
std::uint64_t layout_of(const Blocks& blocks) {
  std::uint64_t digest = 14695981039346656037u;
  for (const auto& block : blocks) {
    for (int byte = 0; byte < 8; ++byte) {
      digest = (digest ^ (block.count >> (8 * byte) & 0xff)) * 1099511628211u;
    }
  }
  return digest;
}

template <typename Blocks>
std::size_t total_count(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0},
                         [](std::size_t sum, const auto& block) { return sum + block.count; });
}

void copy(void* to, const void* from, std::size_t nbytes) {
  if (nbytes > 0 && to != from) std::memcpy(to, from, nbytes);
}

Chunk chunk_of(const void* input, void* output, std::size_t count) {
  return {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count};
}

// Divides a buffer into n chunks, as equal as whole cache lines allow; the last may be shorter.
void split(const void* input, void* output, std::size_t count, std::size_t element_nbytes, int n,
           std::vector<Chunk>& chunks) {
  const std::size_t line = 64 / element_nbytes;
  const std::size_t each = ((count + n - 1) / n + line - 1) / line * line;
  chunks.clear();
  for (int c = 0; c < n; ++c) {
    const std::size_t begin = std::min(count, c * each);
    const std::size_t end = std::min(count, begin + each);
    const std::size_t at = begin * element_nbytes;
    chunks.push_back({static_cast<const std::byte*>(input) + at,
                      output == nullptr ? nullptr : static_cast<std::byte*>(output) + at,
                      end - begin});
  }
}

}  // namespace

void Communicator::all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                              Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kAllReduce, count, reduce);
  const Reduction reduction = reduction_of(reduce);
  if (is_eager(count, reduce.dtype)) {
    std::byte* payload = exchange_.begin(call);
    write_contribution(payload, {input, count}, reduction);
    exchange_.announce(call);
    exchange_.await_all(deadline);
    reduce_payloads(0, {output, count}, reduction);
    exchange_.end();
    return;
  }
  split(input, output, count, element_size(reduce.dtype), world_size(), chunks_);
  run(call, reduction, deadline);
}

void Communicator::reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce,
                                  Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::size_t total = total_count(inputs);
  Call call = make_call(Collective::kReduceScatter, total, reduce);
  call.layout = layout_of(inputs);
  const Reduction reduction = reduction_of(reduce);
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
  chunks_.clear();
  for (int r = 0; r < world_size(); ++r) {
    chunks_.push_back(chunk_of(inputs[r].data, r == rank() ? output : nullptr, inputs[r].count));
  }
  run(call, reduction, deadline);
}

void Communicator::all_gather(const void* input, std::span<const Output> outputs, DType dtype,
                              Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kAllGather, total_count(outputs), dtype);
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
  chunks_.clear();
  for (int r = 0; r < world_size(); ++r) {
    chunks_.push_back(chunk_of(r == rank() ? input : nullptr, outputs[r].data, outputs[r].count));
  }
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

void Communicator::broadcast(void* data, std::size_t count, DType dtype, int root,
                             Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kBroadcast, count, dtype);
  call.root = root;
  check_root(call);
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
  chunks_.assign(1, chunk_of(data, data, count));
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

void Communicator::reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                          int root, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  Call call = make_call(Collective::kReduce, count, reduce);
  call.root = root;
  check_root(call);
  const Reduction reduction = reduction_of(reduce);
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
  split(input, rank() == root ? output : nullptr, count, element_size(reduce.dtype), num_chunks,
        chunks_);
  run(call, reduction, deadline);
}

void Communicator::gather(const void* input, std::span<void* const> outputs, std::size_t count,
                          DType dtype, int root, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::size_t nbytes = count * element_size(dtype);
  Call call = make_call(Collective::kGather, count, dtype);
  call.root = root;
  check_root(call);
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
  chunks_.clear();
  for (int r = 0; r < world_size(); ++r) {
    chunks_.push_back(
        chunk_of(r == rank() ? input : nullptr, rank() == root ? outputs[r] : nullptr, count));
  }
  run(call, {.dtype = dtype, .op = ReduceOp::kSum}, deadline);
}

void Communicator::scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                           DType dtype, int root, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::size_t nbytes = count * element_size(dtype);
  Call call = make_call(Collective::kScatter, count, dtype);
  call.root = root;
  check_root(call);
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
  chunks_.clear();
  for (int r = 0; r < world_size(); ++r) {
    chunks_.push_back(
        chunk_of(rank() == root ? inputs[r] : nullptr, r == rank() ? output : nullptr, count));
  }
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
  Call call = make_call(Collective::kAllToAll, 0, dtype);

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
    chunks_.assign(static_cast<std::size_t>(n) * n, Chunk{});
    for (int r = 0; r < n; ++r) {
      if (!eager) chunks_[rank() * n + r] = chunk_of(inputs[r].data, nullptr, inputs[r].count);
      if (!was_eager(r)) chunks_[r * n + rank()].output = static_cast<std::byte*>(outputs[r].data);
      if (!was_eager(r)) chunks_[r * n + rank()].count = outputs[r].count;
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
  Call call = make_call(Collective::kBarrier, 0, DType::kUInt8);
  exchange_.begin(call);
  exchange_.announce(call);
  exchange_.await_all(deadline);
  exchange_.end();
}

}  // namespace ringcomm
