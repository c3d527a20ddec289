// The fused kernels' functions of one dtype. Each fused_TYPES.cpp includes this file and
// instantiates functions_row for its dtypes.
#pragma once

#include <utility>

#include "fused_rows.h"
#include "gpu/fused/eager.h"
#include "gpu/fused/launch.h"
#include "reduce/device_table.h"

namespace fused_blocks {

template <DType dtype, ReduceOp op>
bool run_eager(Machine& machine, const Job& job, int lane) {
  return fused::EagerSum<dtype, op, Machine>(machine, job, lane).run();
}

template <DType dtype>
FunctionsRow functions_row() {
  const auto of = []<int op>(std::integral_constant<int, op>) -> Functions {
    constexpr auto kOp = static_cast<ReduceOp>(op);
    if constexpr (is_kernel(dtype, kOp)) {
      return {fused::carry_out_share<dtype, kOp, fused::kHopper>, run_eager<dtype, kOp>};
    } else {
      return {};
    }
  };
  return [&]<int... op>(std::integer_sequence<int, op...>) {
    return FunctionsRow{of(std::integral_constant<int, op>())...};
  }(std::make_integer_sequence<int, kNumReduceOps>());
}

}  // namespace fused_blocks
