#include "fused_functions.h"

namespace fused_blocks {

template FunctionsRow functions_row<DType::kFloat64>();
template FunctionsRow functions_row<DType::kFloat32>();
template FunctionsRow functions_row<DType::kFloat16>();
template FunctionsRow functions_row<DType::kBFloat16>();
template FunctionsRow functions_row<DType::kFloat8E4M3FN>();
template FunctionsRow functions_row<DType::kFloat8E5M2>();

}  // namespace fused_blocks
