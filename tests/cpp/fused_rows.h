// What the fused kernels of each dtype are on the host: nvcc makes kernels of the same functions.
#pragma once

#include <array>

#include "fused_machine.h"

namespace fused_blocks {

struct Functions {
  CarryOutShare carry_out_share = nullptr;
  bool (*run_eager)(Machine&, const Job&, int lane) = nullptr;
};
// By op; null where no reduction has the key.
using FunctionsRow = std::array<Functions, kNumReduceOps>;

// Defined in fused_functions.h and instantiated in one fused_TYPES.cpp per few dtypes.
template <DType dtype>
FunctionsRow functions_row();

}  // namespace fused_blocks
