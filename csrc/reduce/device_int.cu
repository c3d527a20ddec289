#include "reduce/device_kernels.h"

namespace ringcomm {

template DeviceRow device_row<DType::kInt64>();
template DeviceRow device_row<DType::kInt32>();

}  // namespace ringcomm
