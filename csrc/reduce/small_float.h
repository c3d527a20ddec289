// Conversions between float32 and the 16- and 8-bit floating types, in integer arithmetic that
// compilers vectorise on the host and that the device can run too.
#pragma once

#include <cstdint>
#include <cstring>

#include "reduce/host_device.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace ringcomm {

RINGCOMM_HOST_DEVICE std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

RINGCOMM_HOST_DEVICE float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// A format of 1 sign bit, then the exponent with IEEE 754's bias, then the mantissa, with
// subnormals. With infinities, the largest exponent means infinity or NaN, and overflow gives
// infinity. Without ("fn", finite), only the all-ones magnitude is NaN, and overflow, infinity
// included, saturates to the largest finite value, as casts in torch 2.13 and newer do.
// Formats: IEEE 754-2019 (float16), "FP8 Formats for Deep Learning" (arXiv:2209.05433).
template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  static constexpr int kMagnitudeBits = kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr std::uint32_t kMagnitudeMask = (1u << kMagnitudeBits) - 1;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr std::uint32_t kNaN =
      kHasInfinity && kMantissaBits > 2 ? kInfinity | 1u << (kMantissaBits - 1) : kMagnitudeMask;
  static constexpr std::uint32_t kFirstNonFinite = kHasInfinity ? kInfinity : kNaN;
  // What a value beyond the range becomes.
  static constexpr std::uint32_t kLimit = kHasInfinity ? kInfinity : kNaN - 1;

  RINGCOMM_HOST_DEVICE static float decode(std::uint32_t bits) {
    const std::uint32_t magnitude = bits & kMagnitudeMask;
    const std::uint32_t sign = (bits >> kMagnitudeBits) << 31;
    const std::uint32_t widened = magnitude << kShift;
    // A subnormal is its mantissa in units of the smallest subnormal; the product is exact, and
    // no operand is a float32 subnormal, so flush-to-zero modes change nothing.
    const float unit = float_of(static_cast<std::uint32_t>(128 - kBias - kMantissaBits) << 23);
    const std::uint32_t subnormal =
        bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * unit);
    std::uint32_t result = magnitude < (1u << kMantissaBits) ? subnormal : widened + kRebias;
    result = magnitude >= kFirstNonFinite ? widened | 0x7f800000u : result;
    return float_of(result | sign);
  }

  // Rounds to nearest, ties to even.
  RINGCOMM_HOST_DEVICE static std::uint32_t encode(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t sign = (bits >> 31) << kMagnitudeBits;
    const std::uint32_t tie_to_even = (magnitude >> kShift) & 1u;
    const std::uint32_t normal =
        (magnitude + ((1u << (kShift - 1)) - 1) + tie_to_even - kRebias) >> kShift;
    // One ulp of `anchor` is the smallest subnormal, so the addition does the rounding.
    const std::uint32_t anchor = static_cast<std::uint32_t>(151 - kBias - kMantissaBits) << 23;
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + float_of(anchor)) - anchor;
    std::uint32_t result = magnitude < kRebias + (1u << 23) ? subnormal : normal;
    // Values below kLimit that round up past the largest finite one carry into infinity.
    result = magnitude >= (kLimit << kShift) + kRebias ? kLimit : result;
    result = magnitude > 0x7f800000u ? kNaN : result;
    return result | sign;
  }
};

using Float8E4M3FN = SmallFloat<4, 3, false>;
using Float8E5M2 = SmallFloat<5, 2, true>;

// float16 and bfloat16 convert in hardware on the device: the same bits, except that every NaN
// becomes 0x7fff there.

struct Float16 {
  RINGCOMM_HOST_DEVICE static float decode(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
#else
    return SmallFloat<5, 10, true>::decode(bits);
#endif
  }
  RINGCOMM_HOST_DEVICE static std::uint32_t encode(float value) {
#ifdef __CUDA_ARCH__
    return __half_as_ushort(__float2half_rn(value));
#else
    return SmallFloat<5, 10, true>::encode(value);
#endif
  }
};

// The upper half of a float32.
struct BFloat16 {
  RINGCOMM_HOST_DEVICE static float decode(std::uint32_t bits) { return float_of(bits << 16); }

  // Rounds to nearest, ties to even; every NaN becomes the one quiet NaN.
  RINGCOMM_HOST_DEVICE static std::uint32_t encode(float value) {
#ifdef __CUDA_ARCH__
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
#endif
  }
};

}  // namespace ringcomm
