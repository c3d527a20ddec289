#include "reduce/device_kernels.h"

namespace ringcomm {

template DeviceRow device_row<DType::kFloat8E4M3FN>();
template DeviceRow device_row<DType::kFloat8E5M2>();

}  // namespace ringcomm
