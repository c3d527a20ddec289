// The table of device kernels, one row per dtype.
#pragma once

#include <array>
#include <cstddef>

#include "reduce/device.h"
#include "reduce/device_divide.h"
#include "reduce/partition.h"

namespace ringcomm {

// Threads per block, and the most blocks that a grid has for each multiprocessor.
inline constexpr int kDeviceThreads = 256;
inline constexpr int kBlocksPerMultiprocessor = 4;

// reduce_device's arguments, checked.
struct DeviceArguments {
  const std::byte* inputs[kMaxDeviceInputs];
  std::byte* outputs[2];
  int num_inputs, num_outputs;
  Partition partition;
  bool element_aligned;  // every pointer is a multiple of the element size
  int divisor;
  UniformDivisor float_divisor;  // the same, for sums in float32
  int scaled_input;
  double factor;
};

using DeviceKernel = void (*)(DeviceArguments);

struct DeviceKernels {
  DeviceKernel two_inputs, many_inputs;
};

// By op; null where supports() is false.
using DeviceRow = std::array<DeviceKernels, kNumReduceOps>;

// Defined in device_kernels.h and instantiated in one device_TYPES.cu per few dtypes, because nvcc
// compiles every kernel once per architecture.
template <DType dtype>
DeviceRow device_row();

}  // namespace ringcomm
