#include "reduce/device_kernels.h"

namespace ringcomm {

template DeviceTable device_table<DeviceTypes::kFloat8>();

}  // namespace ringcomm
