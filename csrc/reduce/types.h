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

// Bytes per element.
constexpr std::size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return 2;
    default:
      return 1;
  }
}

constexpr bool is_floating_point(DType dtype) { return dtype <= DType::kFloat8E5M2; }

// torch's spelling: "float32", "bfloat16", "float8_e4m3fn", ...
const char* name(DType dtype);

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum".
const char* name(ReduceOp op);

// avg has no meaning for bool, bitwise operations none for floating types, premul_sum is for
// floating types only. Everything else is supported.
constexpr bool supports(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kAvg:
      return dtype != DType::kBool;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !is_floating_point(dtype);
    case ReduceOp::kPremulSum:
      return is_floating_point(dtype);
    default:
      return true;
  }
}

}  // namespace ringcomm
