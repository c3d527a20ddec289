#include "gpu/fused/kernels.h"

namespace ringcomm::fused {

template KernelTable kernel_table<DeviceTypes::kInt>();

}  // namespace ringcomm::fused
