#include "gpu/fused/kernels.h"

namespace ringcomm::fused {

template KernelTable kernel_table<DeviceTypes::kFloat>();

}  // namespace ringcomm::fused
