// Where the fused kernels of each dtype are found.
#pragma once

#include <array>

#include "fused/job.h"

namespace ringcomm::fused {

using Kernel = void (*)(Job);
struct Kernels {
  Kernel lanes = nullptr;
  Kernel eager = nullptr;
};
// By op; null where no reduction has the key.
using KernelRow = std::array<Kernels, kNumReduceOps>;

// Defined in kernels.h and instantiated in one device_TYPES.cu per few dtypes, because nvcc
// compiles every kernel once per architecture.
template <DType dtype>
KernelRow kernel_row();

}  // namespace ringcomm::fused
