// Conversions between float32 and the 16- and 8-bit floating types, in integer arithmetic that
// compilers vectorise on the host and that the device can run too.
#pragma once

#include <cstdint>

#include "reduce/host_device.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace ringcomm {

// std::bit_cast is not for the device.
RINGCOMM_HOST_DEVICE constexpr std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

RINGCOMM_HOST_DEVICE constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// As functions they are the one instruction; among variables, GCC makes branches of them first.
RINGCOMM_HOST_DEVICE constexpr std::int32_t smaller(std::int32_t a, std::int32_t b) {
  return a < b ? a : b;
}
RINGCOMM_HOST_DEVICE constexpr std::int32_t larger(std::int32_t a, std::int32_t b) {
  return a < b ? b : a;
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

  // The bits of float32 values: that of kLimit, and the smallest normal one.
  static constexpr std::uint32_t kLargest = (kLimit << kShift) + kRebias;
  static constexpr std::uint32_t kSmallestNormal = kRebias + (1u << 23);

  RINGCOMM_HOST_DEVICE static constexpr float decode(std::uint32_t bits) {
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

  // Rounds to nearest, ties to even. The sign is in bit 31, the magnitude in the lowest bits, and
  // those between mean nothing.
  //
  // What rounds is the addition of an anchor, 2^(e + kShift) for values from 2^e on, and for
  // subnormals that of the smallest normal one: its ulp is theirs in this format. The sum has the
  // value in ulps in its low bits and e, biased, in its exponent; together they are the code,
  //
  //   ulps + ((e + kBias - 1) << kMantissaBits)
  //
  // if the anchor has kOffset ulps, an even number, for the difference of the biases.
  RINGCOMM_HOST_DEVICE static std::uint32_t encode_wide(float value) {
    constexpr std::uint32_t kOffset =
        (static_cast<std::uint32_t>(kBias - 1 - 127 - kShift) << kMantissaBits) & kMagnitudeMask;
    constexpr std::uint32_t kAnchor = (static_cast<std::uint32_t>(kShift) << 23) + kOffset;
    const std::uint32_t bits = bits_of(value);
    const std::int32_t magnitude = smaller(static_cast<std::int32_t>(bits & 0x7fffffffu), kLargest);
    const std::int32_t binade = larger(magnitude, kSmallestNormal) & 0x7f800000;
    const float anchor = float_of(static_cast<std::uint32_t>(binade) + kAnchor);
    const std::uint32_t sum = bits_of(float_of(static_cast<std::uint32_t>(magnitude)) + anchor);
    const std::uint32_t rounded = value != value ? kNaN : sum + (sum >> kShift);
    return rounded | (bits & 0x80000000u);
  }

  RINGCOMM_HOST_DEVICE static std::uint32_t encode(float value) {
    const std::uint32_t wide = encode_wide(value);
    return (wide & kMagnitudeMask) | (wide >> 31) << kMagnitudeBits;
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
    return rounded(value) >> 16;
#endif
  }

  // That in the upper half, and anything in the lower one.
  RINGCOMM_HOST_DEVICE static std::uint32_t rounded(float value) {
    const std::uint32_t bits = bits_of(value);
    return value != value ? 0x7fc00000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  }
};

}  // namespace ringcomm
