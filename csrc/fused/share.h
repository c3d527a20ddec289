// One thread's share of what a step does to data.
#pragma once

#include "fused/threads.h"
#include "reduce/device_share.h"

namespace ringcomm::fused {

inline constexpr int kSmallestBatch = kBatches[0];
template <ReduceOp op>
inline constexpr bool kTakesSmallestBatch = has_batch(op, 0);

// kernel_key(dtype, op) is the kernel's. `moves`: the bits of the one input, whatever the type.
template <DType dtype, ReduceOp op, int arch>
RINGCOMM_HOST_DEVICE void carry_out_share(const DeviceArguments& args, bool moves,
                                          const Worker& worker) {
  constexpr int kSums = summed_in_flight(dtype, arch);
  if (args.num_outputs == 0) return;
  if (moves) {
    reduce_share<DType::kUInt8, ReduceOp::kBor, 1, moved_in_flight(arch)>(args, worker);
    return;
  }
  if constexpr (kTakesSmallestBatch<op>) {
    if (args.num_inputs <= kSmallestBatch) {
      reduce_share<dtype, op, kSmallestBatch, kSums>(args, worker);
      return;
    }
  }
  reduce_share<dtype, op, kLargestBatch, kSums>(args, worker);
}

}  // namespace ringcomm::fused
