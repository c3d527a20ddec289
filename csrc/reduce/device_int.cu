#include "reduce/device_kernels.h"

namespace ringcomm {

template DeviceRow device_row<DType::kInt64>();
template DeviceRow device_row<DType::kInt32>();
template DeviceRow device_row<DType::kInt16>();
template DeviceRow device_row<DType::kInt8>();
template DeviceRow device_row<DType::kUInt8>();
template DeviceRow device_row<DType::kBool>();

}  // namespace ringcomm
