#include "fused_functions.h"

namespace fused_blocks {

template FunctionsRow functions_row<DType::kInt64>();
template FunctionsRow functions_row<DType::kInt32>();
template FunctionsRow functions_row<DType::kInt16>();
template FunctionsRow functions_row<DType::kInt8>();
template FunctionsRow functions_row<DType::kUInt8>();
template FunctionsRow functions_row<DType::kBool>();

}  // namespace fused_blocks
