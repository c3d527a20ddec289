// One thread's share of what a step does to data.
#pragma once

#include "reduce/device_share.h"

namespace ringcomm::fused {

// kernel_key(dtype, op) is the kernel's. `moves`: the bits of the one input, whatever the type.
template <DType dtype, ReduceOp op>
RINGCOMM_HOST_DEVICE void carry_out_share(const DeviceArguments& args, bool moves,
                                          const Worker& worker) {
  if (args.num_outputs == 0) return;
  if (moves) {
    reduce_share<DType::kUInt8, ReduceOp::kBor, kBatches[0]>(args, worker);
    return;
  }
  if constexpr (has_batch(op, 0)) {
    if (args.num_inputs <= kBatches[0]) {
      reduce_share<dtype, op, kBatches[0]>(args, worker);
      return;
    }
  }
  reduce_share<dtype, op, kLargestBatch>(args, worker);
}

}  // namespace ringcomm::fused
