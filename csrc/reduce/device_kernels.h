// The device kernels. Each device_TYPES.cu includes this file and instantiates device_table for its
// dtypes.
#pragma once

#include <cuda_runtime.h>

#include "reduce/device_share.h"
#include "reduce/device_table.h"

namespace ringcomm {

template <DType dtype, ReduceOp op>
constexpr int kResidentBlocks = blocks_per_multiprocessor({dtype, op});

template <DType dtype, ReduceOp op, int kBatch>
__global__ void __launch_bounds__(kDeviceThreads, kResidentBlocks<dtype, op>)
    reduce_kernel(const __grid_constant__ DeviceArguments args) {
  reduce_share<dtype, op, kBatch>(args, {blockIdx.x, gridDim.x, threadIdx.x, kDeviceThreads});
}

struct KernelMaker {
  using Function = DeviceKernel;
  template <DType dtype, ReduceOp op, int kBatch>
  static constexpr Function make() {
    return reduce_kernel<dtype, op, kBatch>;
  }
};

template <DeviceTypes types>
DeviceTable device_table() {
  return rows_of<types, KernelRow<DeviceKernel>>([](auto dtype) {
    return make_kernel_row<KernelMaker, static_cast<DType>(decltype(dtype)::value)>();
  });
}

}  // namespace ringcomm
