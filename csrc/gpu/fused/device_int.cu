#include "gpu/fused/kernels.h"

namespace ringcomm::fused {

template KernelRow kernel_row<DType::kInt64>();
template KernelRow kernel_row<DType::kInt32>();
template KernelRow kernel_row<DType::kInt16>();
template KernelRow kernel_row<DType::kInt8>();
template KernelRow kernel_row<DType::kUInt8>();
template KernelRow kernel_row<DType::kBool>();

}  // namespace ringcomm::fused
