#include "reduce/device_kernels.h"

namespace ringcomm {

template DeviceRow device_row<DType::kFloat64>();
template DeviceRow device_row<DType::kFloat32>();
template DeviceRow device_row<DType::kFloat16>();
template DeviceRow device_row<DType::kBFloat16>();

}  // namespace ringcomm
