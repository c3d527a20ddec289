// Element types, reduction operations, and what a reduction computes.
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

struct DTypeInfo {
  const char* name;  // torch's spelling
  std::size_t nbytes;
};
inline constexpr DTypeInfo kDTypeInfo[kNumDTypes] = {
    {"float64", 8},       {"float32", 4},     {"float16", 2}, {"bfloat16", 2},
    {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"int64", 8},   {"int32", 4},
    {"int16", 2},         {"int8", 1},        {"uint8", 1},   {"bool", 1},
};

// Bytes per element.
constexpr std::size_t element_size(DType dtype) {
  if (!is_valid(dtype)) throw std::logic_error("a dtype without a size");
  return kDTypeInfo[static_cast<int>(dtype)].nbytes;
}

constexpr bool is_floating_point(DType dtype) { return dtype <= DType::kFloat8E5M2; }

constexpr const char* name(DType dtype) { return kDTypeInfo[static_cast<int>(dtype)].name; }

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
inline std::string name(const ElementType& type) {
  const std::array<char, 23>& users = type.users.name;
  return users[0] == '\0' ? name(type.dtype) : std::string(users.data());
}
constexpr std::uint64_t users_count(const UsersDType& users, std::uint64_t count) {
  return count / users.per_element;
}

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum".
inline const char* name(ReduceOp op) {
  constexpr const char* kNames[kNumReduceOps] = {
      "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum",
  };
  return kNames[static_cast<int>(op)];
}

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

// Whether the order of addition shows in the bits.
constexpr bool depends_on_association(DType dtype, ReduceOp op) {
  return is_floating_point(dtype) && (op == ReduceOp::kSum || op == ReduceOp::kAvg ||
                                      op == ReduceOp::kProduct || op == ReduceOp::kPremulSum);
}

// One elementwise reduction
//
//   out[i] = round( finish( in[0][i] op in[1][i] op ... op in[n-1][i] ) )
//
// evaluated in the accumulation type: float32 for 16- and 8-bit floats, the type itself otherwise.
// Neighbours are added first, then neighbouring pairs, and so on; an odd one at the end waits for
// the next level:
//
//   6 inputs        ((0 + 1) + (2 + 3)) + (4 + 5)
//   7 inputs        ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
//
// So the sum over an aligned block of 2^k inputs is a part of the sum over all of them, and can be
// computed apart. Integers wrap around, but for avg, which adds them up in a type that holds
// every sum. -0 is less than +0, and two inputs give the same bits in either order, but for the
// sign and payload of a NaN. Pointers may have any alignment; an output may be one of the inputs,
// and must not overlap them in any other way.
struct Reduction {
  DType dtype;
  ReduceOp op;
  // avg divides by this once, after the last addition (integers truncate toward zero). 1 leaves
  // the sum as it is: partial sums pass 1, the last addition passes the world size.
  int divisor = 1;
  // premul_sum multiplies input `scaled_input` by `factor` in the accumulation type and rounds the
  // product to the dtype before it is added: a rank's own contribution has the bits that the other
  // ranks receive. -1: no input is scaled, because the others arrive scaled already.
  int scaled_input = -1;
  double factor = 1.0;
};

// How a collective combines the values of all ranks.
struct Reduce {
  DType dtype;
  ReduceOp op;
  double factor = 1.0;  // premul_sum: what this rank's input is multiplied by
  UsersDType users = {};
};

// The reduction among world_size ranks, for those that add last.
constexpr Reduction reduction_of(const Reduce& reduce, int world_size) {
  Reduction reduction{.dtype = reduce.dtype, .op = reduce.op};
  if (reduce.op == ReduceOp::kAvg) reduction.divisor = world_size;
  if (reduce.op == ReduceOp::kPremulSum) reduction.factor = reduce.factor;
  return reduction;
}

// The op to carry out: avg with nothing to divide and premul_sum with nothing to scale are sums.
constexpr ReduceOp effective_op(const Reduction& reduction) {
  const bool is_sum = (reduction.op == ReduceOp::kAvg && reduction.divisor <= 1) ||
                      (reduction.op == ReduceOp::kPremulSum && reduction.scaled_input < 0);
  return is_sum ? ReduceOp::kSum : reduction.op;
}

}  // namespace ringcomm
