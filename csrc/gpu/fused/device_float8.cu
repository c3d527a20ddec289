#include "gpu/fused/kernels.h"

namespace ringcomm::fused {

template KernelRow kernel_row<DType::kFloat8E4M3FN>();
template KernelRow kernel_row<DType::kFloat8E5M2>();

}  // namespace ringcomm::fused
