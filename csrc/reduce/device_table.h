// A table of functions, one for each kernel, to be found by its key.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "reduce/device_arguments.h"

namespace ringcomm {

// One dtype's, by op and batch; null where no reduction has the key.
template <typename Function>
using KernelRow = std::array<std::array<Function, kNumBatches>, kNumReduceOps>;

constexpr bool is_kernel(DType dtype, ReduceOp op) {
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const KernelKey any{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (supports(any.dtype, any.op) && kernel_key(any.dtype, any.op) == KernelKey{dtype, op}) {
        return true;
      }
    }
  }
  return false;
}

template <typename Factory, DType dtype, ReduceOp op, int batch>
constexpr typename Factory::Function make_kernel() {
  if constexpr (has_batch(op, batch)) {
    return Factory::template make<dtype, op, kBatches[batch]>();
  } else {
    return nullptr;
  }
}

// Factory::make<dtype, op, batch>() gives each function.
template <typename Factory, DType dtype>
constexpr auto make_kernel_row() {
  using Function = typename Factory::Function;
  const auto of_op = []<int op, int... batch>(std::integral_constant<int, op>,
                                              std::integer_sequence<int, batch...>) {
    std::array<Function, kNumBatches> functions{};
    if constexpr (is_kernel(dtype, static_cast<ReduceOp>(op))) {
      functions = {make_kernel<Factory, dtype, static_cast<ReduceOp>(op), batch>()...};
    }
    return functions;
  };
  return [&]<int... op>(std::integer_sequence<int, op...>) {
    return KernelRow<Function>{of_op(std::integral_constant<int, op>(),
                                     std::make_integer_sequence<int, kNumBatches>())...};
  }(std::make_integer_sequence<int, kNumReduceOps>());
}

using DeviceKernel = void (*)(DeviceArguments);
using DeviceTable = std::array<KernelRow<DeviceKernel>, kNumDTypes>;

// nvcc compiles every kernel once per architecture. So that it compiles several at a time, each of
// these has its device_TYPES.cu, here and in gpu/fused/.
enum class DeviceTypes { kFloat, kFloat8, kInt };
inline constexpr int kNumDeviceTypes = 3;

constexpr DeviceTypes device_types_of(DType dtype) {
  if (!is_floating_point(dtype)) return DeviceTypes::kInt;
  return element_size(dtype) == 1 ? DeviceTypes::kFloat8 : DeviceTypes::kFloat;
}

// By dtype: make_row(an integral constant that is the dtype's number) for those of these types, and
// empty rows for the others.
template <DeviceTypes types, typename Row, typename MakeRow>
constexpr std::array<Row, kNumDTypes> rows_of(MakeRow make_row) {
  const auto row = [&]<int dtype>(std::integral_constant<int, dtype> number) {
    if constexpr (device_types_of(static_cast<DType>(dtype)) == types) {
      return make_row(number);
    } else {
      return Row{};
    }
  };
  return [&]<int... dtype>(std::integer_sequence<int, dtype...>) {
    return std::array<Row, kNumDTypes>{row(std::integral_constant<int, dtype>())...};
  }(std::make_integer_sequence<int, kNumDTypes>());
}

// The kernels of these types, by dtype; null for other dtypes. Defined in device_kernels.h.
template <DeviceTypes types>
DeviceTable device_table();

}  // namespace ringcomm
