#include "streams/collectives.h"

#include "streams/cost.h"

namespace ringcomm::streams {

// A direct plan takes 2 latencies and 2 groups of messages where a ring takes 2 (n-1), and rounds
// 16- and 8-bit floats once; a ring keeps to two neighbours. Where a step of the ring takes less
// time on the wire than its calls on the host, the calls decide. A direct broadcast's root sends
// the buffer n-1 times, where a chain's sends it once, but needs slices that are worth their calls.
// nbytes is that of the whole buffer.
Algorithm Collectives::choose(Collective collective, std::size_t count, DType dtype) const {
  if (algorithm_ != Algorithm::kAuto) return algorithm_;
  const std::size_t nbytes = count * element_size(dtype);
  if (collective == Collective::kBroadcast) {
    return nbytes < 2 * kMinSliceNbytes ? Algorithm::kDirect : Algorithm::kRing;
  }
  const bool direct = element_size(dtype) < 4 || nbytes < world_size_ * kMinSliceNbytes;
  return direct ? Algorithm::kDirect : Algorithm::kRing;
}

void Collectives::run(const Call& call, const Reduction& reduction, Timeout timeout) {
  run(call, program(call), chunks_, reduction, timeout);
}

void Collectives::move(const Call& call, Timeout timeout) {
  run(call, {.dtype = call.dtype, .op = ReduceOp::kSum}, timeout);
}

void Collectives::all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                             Timeout timeout) {
  const Call call = make_call(Collective::kAllReduce, count, reduce,
                              choose(Collective::kAllReduce, count, reduce.dtype));
  divide(input, output, count, element_size(reduce.dtype), world_size_, chunks_);
  run(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce,
                                 Timeout timeout) {
  const std::size_t total = total_count(inputs);
  Call call = make_call(Collective::kReduceScatter, total, reduce,
                        choose(Collective::kReduceScatter, total, reduce.dtype));
  call.layout = layout_of(inputs);
  chunks_to_reduce_scatter(inputs, output, rank_, chunks_);
  run(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::all_gather(const void* input, std::span<const Output> outputs, DType dtype,
                             Timeout timeout) {
  const std::size_t total = total_count(outputs);
  Call call =
      make_call(Collective::kAllGather, total, dtype, choose(Collective::kAllGather, total, dtype));
  call.layout = layout_of(outputs);
  chunks_to_all_gather(input, outputs, rank_, chunks_);
  move(call, timeout);
}

void Collectives::broadcast(void* data, std::size_t count, DType dtype, int root, Timeout timeout) {
  Call call =
      make_call(Collective::kBroadcast, count, dtype, choose(Collective::kBroadcast, count, dtype));
  set_root(call, root, world_size_);
  divide(data, data, count, element_size(dtype), 1, chunks_);
  move(call, timeout);
}

void Collectives::reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                         int root, Timeout timeout) {
  Call call = make_call(Collective::kReduce, count, reduce,
                        choose(Collective::kReduce, count, reduce.dtype));
  set_root(call, root, world_size_);
  divide(input, rank_ == root ? output : nullptr, count, element_size(reduce.dtype),
         program(call).num_chunks, chunks_);
  run(call, reduction_of(reduce, world_size_), timeout);
}

void Collectives::gather(const void* input, std::span<void* const> outputs, std::size_t count,
                         DType dtype, int root, Timeout timeout) {
  Call call = make_call(Collective::kGather, count, dtype, Algorithm::kDirect);
  set_root(call, root, world_size_);
  chunks_to_gather(input, rank_ == root ? outputs : std::span<void* const>{}, count, rank_,
                   world_size_, chunks_);
  move(call, timeout);
}

void Collectives::scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                          DType dtype, int root, Timeout timeout) {
  Call call = make_call(Collective::kScatter, count, dtype, Algorithm::kDirect);
  set_root(call, root, world_size_);
  chunks_to_scatter(rank_ == root ? inputs : std::span<const void* const>{}, output, count, rank_,
                    world_size_, chunks_);
  move(call, timeout);
}

void Collectives::all_to_all(std::span<const Input> inputs, std::span<const Output> outputs,
                             DType dtype, Timeout timeout) {
  const Call call = make_call(Collective::kAllToAll, 0, dtype, Algorithm::kDirect);
  chunks_to_all_to_all(inputs, outputs, rank_, chunks_);
  move(call, timeout);
}

}  // namespace ringcomm::streams
