// The one table of dtype x op that every reduction is made of, on the host and on the device:
// how an element becomes a value of its accumulation type, how two values combine, how the result
// is finished and stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reduce/host_device.h"
#include "reduce/small_float.h"
#include "reduce/types.h"

namespace ringcomm {

// Element<dtype>: Storage, the type in memory; Accumulator, the type of all arithmetic; load and
// store (with one rounding) between them.
template <typename T>
struct NativeElement {
  using Storage = T;
  using Accumulator = T;
  RINGCOMM_HOST_DEVICE static T load(T stored) { return stored; }
  RINGCOMM_HOST_DEVICE static T store(T value) { return value; }
};

template <typename StorageType, typename Format>
struct RoundedElement {
  using Storage = StorageType;
  using Accumulator = float;
  RINGCOMM_HOST_DEVICE static float load(Storage stored) { return Format::decode(stored); }
  RINGCOMM_HOST_DEVICE static Storage store(float value) {
    return static_cast<Storage>(Format::encode(value));
  }
};

// Any nonzero byte is true; results are 0 or 1.
struct BoolElement {
  using Storage = std::uint8_t;
  using Accumulator = std::uint8_t;
  RINGCOMM_HOST_DEVICE static std::uint8_t load(std::uint8_t stored) { return stored != 0; }
  RINGCOMM_HOST_DEVICE static std::uint8_t store(std::uint8_t value) { return value; }
};

template <DType>
struct Element;
template <>
struct Element<DType::kFloat64> : NativeElement<double> {};
template <>
struct Element<DType::kFloat32> : NativeElement<float> {};
template <>
struct Element<DType::kFloat16> : RoundedElement<std::uint16_t, Float16> {};
template <>
struct Element<DType::kBFloat16> : RoundedElement<std::uint16_t, BFloat16> {};
template <>
struct Element<DType::kFloat8E4M3FN> : RoundedElement<std::uint8_t, Float8E4M3FN> {};
template <>
struct Element<DType::kFloat8E5M2> : RoundedElement<std::uint8_t, Float8E5M2> {};
template <>
struct Element<DType::kInt64> : NativeElement<std::int64_t> {};
template <>
struct Element<DType::kInt32> : NativeElement<std::int32_t> {};
template <>
struct Element<DType::kInt16> : NativeElement<std::int16_t> {};
template <>
struct Element<DType::kInt8> : NativeElement<std::int8_t> {};
template <>
struct Element<DType::kUInt8> : NativeElement<std::uint8_t> {};
template <>
struct Element<DType::kBool> : BoolElement {};

template <DType dtype>
using Storage = typename Element<dtype>::Storage;

// Averages of integers add up in a type that holds the sum of any number of ranks' values.
__extension__ using Int128 = __int128;
template <DType dtype, ReduceOp op>
struct AccumulatorOf {
  using type = typename Element<dtype>::Accumulator;
};
template <DType dtype>
  requires(!is_floating_point(dtype))
struct AccumulatorOf<dtype, ReduceOp::kAvg> {
  static constexpr std::size_t kNbytes = element_size(dtype);
  using type = std::conditional_t<kNbytes == 8, Int128,
                                  std::conditional_t<kNbytes == 4, std::int64_t, std::int32_t>>;
};
template <DType dtype, ReduceOp op = ReduceOp::kSum>
using Accumulator = typename AccumulatorOf<dtype, op>::type;

// Integers wrap around: the arithmetic is unsigned, and at least as wide as unsigned int, because
// narrower operands would be promoted to (signed, overflowing) int.
template <typename T, bool is_integer = std::is_integral_v<T>>
struct Wrapping {
  using type = T;
};
template <typename T>
struct Wrapping<T, true> {
  using type = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
};

// min or max of floats, where -0 is less than +0, and a NaN propagates. It is chosen twice, and
// both choices are the same number, unless neither a nor b is less than the other: then one choice
// is a, and the other one b. Their magnitudes' bits together are a NaN's if one is a NaN. The sign
// is that of either choice (min) or of both (max). Compilers make one instruction of each choice.
template <ReduceOp op, typename T>
RINGCOMM_HOST_DEVICE T extreme(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  constexpr bool kIsMin = op == ReduceOp::kMin;
  const Bits x = __builtin_bit_cast(Bits, (kIsMin ? a < b : b < a) ? a : b);
  const Bits y = __builtin_bit_cast(Bits, (kIsMin ? b < a : a < b) ? b : a);
  if constexpr (kIsMin) return __builtin_bit_cast(T, x | y);
  constexpr Bits kMagnitude = static_cast<Bits>(-1) >> 1;
  return __builtin_bit_cast(T, (x & y) | ((x | y) & kMagnitude));
}

// a op b, which is b op a to the bit, but for the sign and payload of a NaN. Integers wrap around,
// but for avg. avg and premul_sum combine as sum does.
template <DType dtype, ReduceOp op>
RINGCOMM_HOST_DEVICE Accumulator<dtype, op> combine(Accumulator<dtype, op> a,
                                                    Accumulator<dtype, op> b) {
  using T = Accumulator<dtype, op>;
  using W = typename Wrapping<T>::type;
  if constexpr (dtype == DType::kBool &&
                (op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor)) {
    return a | b;
  } else if constexpr (dtype == DType::kBool && op != ReduceOp::kBxor) {
    return a & b;
  } else if constexpr (op == ReduceOp::kProduct) {
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  } else if constexpr (std::is_floating_point_v<T> &&
                       (op == ReduceOp::kMin || op == ReduceOp::kMax)) {
    return extreme<op>(a, b);
  } else if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    return (op == ReduceOp::kMin ? b < a : a < b) ? b : a;
  } else if constexpr (op == ReduceOp::kBand) {
    return a & b;
  } else if constexpr (op == ReduceOp::kBor) {
    return a | b;
  } else if constexpr (op == ReduceOp::kBxor) {
    return a ^ b;
  } else {
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
}

// value * factor, the first half of premul_sum's scaling; the second one rounds it to the dtype.
// It is never a part of a fused multiply-add (callers switch that off for host compilers).
template <typename T>
RINGCOMM_HOST_DEVICE T scaled(T value, T factor) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    return __fmul_rn(value, factor);
  } else {
    return __dmul_rn(value, factor);
  }
#else
  return value * factor;
#endif
}

// What is read back where the value was stored.
template <DType dtype>
RINGCOMM_HOST_DEVICE Accumulator<dtype> rounded(Accumulator<dtype> value) {
  return Element<dtype>::load(Element<dtype>::store(value));
}

// sum / divisor, divisor >= 1; integers truncate toward zero. Sums of integers of up to 32 bits
// divide as float64, which vectorises: below 2^52 they are exact there, and two different quotients
// a/d are at least 1/d apart, more than the rounding error, so that the truncated one is exact.
template <typename T>
RINGCOMM_HOST_DEVICE T divide(T sum, int divisor) {
  if constexpr (std::is_floating_point_v<T> || sizeof(T) == 16) {
    return sum / static_cast<T>(divisor);
  } else {
    return static_cast<T>(static_cast<double>(sum) / divisor);
  }
}

// The last step before the store.
template <ReduceOp op, typename T>
RINGCOMM_HOST_DEVICE T finish(T value, int divisor) {
  if constexpr (op == ReduceOp::kAvg) {
    return divide(value, divisor);
  } else {
    return value;
  }
}

}  // namespace ringcomm
