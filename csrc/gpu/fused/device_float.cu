#include "gpu/fused/kernels.h"

namespace ringcomm::fused {

template KernelRow kernel_row<DType::kFloat64>();
template KernelRow kernel_row<DType::kFloat32>();
template KernelRow kernel_row<DType::kFloat16>();
template KernelRow kernel_row<DType::kBFloat16>();

}  // namespace ringcomm::fused
