// The device kernels. Each device_TYPES.cu includes this file and instantiates device_table for its
// dtypes.
#pragma once

#include <cuda_runtime.h>

#include <utility>

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
  const auto row = []<int dtype>(std::integral_constant<int, dtype>) {
    constexpr auto kDType = static_cast<DType>(dtype);
    if constexpr (device_types_of(kDType) == types) {
      return make_kernel_row<KernelMaker, kDType>();
    } else {
      return KernelRow<DeviceKernel>{};
    }
  };
  return [&]<int... dtype>(std::integer_sequence<int, dtype...>) {
    return DeviceTable{row(std::integral_constant<int, dtype>())...};
  }(std::make_integer_sequence<int, kNumDTypes>());
}

}  // namespace ringcomm
