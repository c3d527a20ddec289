// The element types and reduction operations of every ringcomm collective.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
};

enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBand,
  kBor,
  kBxor,
  kPremulSum,
};

inline constexpr int kNumDTypes = 12;
inline constexpr int kNumReduceOps = 9;

std::size_t element_size(DType dtype);

// torch's spelling: "float32", "bfloat16", "float8_e4m3fn", ...
const char* name(DType dtype);

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum".
const char* name(ReduceOp op);

// avg has no meaning for bool, bitwise operations none for floating types, premul_sum is for
// floating types only. Everything else is supported.
bool supports(DType dtype, ReduceOp op);

}  // namespace ringcomm
