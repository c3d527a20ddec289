// The element types and reduction operations of every ringcomm collective.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

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

// Checks values that come from another process or from Python.
constexpr bool is_valid(DType dtype) { return static_cast<int>(dtype) < kNumDTypes; }
constexpr bool is_valid(ReduceOp op) { return static_cast<int>(op) < kNumReduceOps; }

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
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  throw std::logic_error("a dtype without a size");
}

constexpr bool is_floating_point(DType dtype) { return dtype <= DType::kFloat8E5M2; }

// torch's spelling: "float32", "bfloat16", "float8_e4m3fn", ...
const char* name(DType dtype);

// What a user's elements are where they are made of several of these: complex64 of two float32,
// what is only moved and has no DType of bytes.
struct UsersDType {
  std::array<char, 23> name{};   // torch's spelling; empty: the user's dtype is a DType
  std::uint8_t per_element = 1;  // elements of the DType in one of the user's

  bool operator==(const UsersDType&) const = default;
  // Checks a value that comes from another process.
  bool is_valid() const {
    const auto is_printable = [](char c) { return c == '\0' || (c > ' ' && c <= '~'); };
    return per_element > 0 && name.back() == '\0' && std::ranges::all_of(name, is_printable);
  }
};

struct ElementType {
  ElementType(DType dtype, const UsersDType& users = {}) : dtype(dtype), users(users) {}

  DType dtype;
  UsersDType users;
};

// As the user knows them: "complex64", and how many of these `count` elements of the DType are.
std::string name(const ElementType& type);
constexpr std::uint64_t users_count(const UsersDType& users, std::uint64_t count) {
  return count / users.per_element;
}

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
