// One thread's share of what a step does to data.
#pragma once

#include "reduce/device_share.h"

namespace ringcomm::fused {

inline constexpr int kSmallestBatch = kBatches[0];
// Of a thread: what fits into its registers beside the values of a pack, so that it does not spill.
inline constexpr int kMovedInFlight = 8;
template <DType dtype>
inline constexpr int kSummedInFlight = dtype == DType::kFloat16 ? 6 : 8;
template <ReduceOp op>
inline constexpr bool kTakesSmallestBatch = has_batch(op, 0);

// kernel_key(dtype, op) is the kernel's. `moves`: the bits of the one input, whatever the type.
template <DType dtype, ReduceOp op>
RINGCOMM_HOST_DEVICE void carry_out_share(const DeviceArguments& args, bool moves,
                                          const Worker& worker) {
  if (args.num_outputs == 0) return;
  if (moves) {
    reduce_share<DType::kUInt8, ReduceOp::kBor, 1, kMovedInFlight>(args, worker);
    return;
  }
  if constexpr (kTakesSmallestBatch<op>) {
    if (args.num_inputs <= kSmallestBatch) {
      reduce_share<dtype, op, kSmallestBatch, kSummedInFlight<dtype>>(args, worker);
      return;
    }
  }
  reduce_share<dtype, op, kLargestBatch, kSummedInFlight<dtype>>(args, worker);
}

}  // namespace ringcomm::fused
