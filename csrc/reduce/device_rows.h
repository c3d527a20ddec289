// Where the device kernels of each dtype are found.
#pragma once

#include "reduce/device_table.h"

namespace ringcomm {

using DeviceKernel = void (*)(DeviceArguments);
using DeviceRow = KernelRow<DeviceKernel>;

// Defined in device_kernels.h and instantiated in one device_TYPES.cu per few dtypes, because nvcc
// compiles every kernel once per architecture.
template <DType dtype>
DeviceRow device_row();

}  // namespace ringcomm
