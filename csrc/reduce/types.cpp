#include "reduce/types.h"

namespace ringcomm {

const char* name(DType dtype) {
  constexpr const char* kNames[kNumDTypes] = {
      "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
      "int64",   "int32",   "int16",   "int8",     "uint8",         "bool",
  };
  return kNames[static_cast<int>(dtype)];
}

std::string name(const ElementType& type) {
  const std::array<char, 23>& users = type.users.name;
  return users[0] == '\0' ? name(type.dtype) : std::string(users.data());
}

const char* name(ReduceOp op) {
  constexpr const char* kNames[kNumReduceOps] = {
      "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum",
  };
  return kNames[static_cast<int>(op)];
}

}  // namespace ringcomm
