#include "reduce/device_kernels.h"

namespace ringcomm {

template DeviceRow device_row<DType::kInt16>();

}  // namespace ringcomm
