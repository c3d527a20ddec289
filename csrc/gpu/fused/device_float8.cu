#include "gpu/fused/kernels.h"

namespace ringcomm::fused {

template KernelTable kernel_table<DeviceTypes::kFloat8>();

}  // namespace ringcomm::fused
