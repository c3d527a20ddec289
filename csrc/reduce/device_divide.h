// Division of many float32 values by one integer, without a division per value.
//
// With r = 1/d rounded once, q = a * r is near a/d, one Newton step q += (a - q d) r makes it
// faithful, and by Markstein's theorem a second one rounds it correctly ("Computation of elementary
// functions on the IBM RISC System/6000 processor", 1990). That takes an exact remainder a - q d,
// so `a` must not be tiny. Tiny values divide in float64, where the remainder is exact, too; the
// quotient is then near enough to be rounded to float32 correctly, because a/d is either a tie
// between two float32, and exact in float64, or farther than 2^-50 from any, relatively.
// Invariant: the bits of a / d, but for the payload of a NaN.
#pragma once

#include <cmath>

#include "reduce/host_device.h"

namespace ringcomm {

struct UniformDivisor {
  float divisor, reciprocal;
  double wide_reciprocal;

  // divisor >= 1.
  static UniformDivisor of(int divisor) {
    const float rounded = static_cast<float>(divisor);
    return {rounded, 1.0f / rounded, 1.0 / static_cast<double>(rounded)};
  }

  RINGCOMM_HOST_DEVICE float divide(float a) const {
    constexpr float kTiny = 0x1p-60f;
    const float magnitude = std::fabs(a);
    if (magnitude < kTiny) return divide_tiny(a);
    const float estimate = a * reciprocal;
    if (!(magnitude < HUGE_VALF)) return estimate;
    const float faithful = std::fma(std::fma(-estimate, divisor, a), reciprocal, estimate);
    return std::fma(std::fma(-faithful, divisor, a), reciprocal, faithful);
  }

 private:
  RINGCOMM_HOST_DEVICE float divide_tiny(float a) const {
    const double wide = a;
    const double estimate = wide * wide_reciprocal;
    const double remainder = std::fma(-estimate, static_cast<double>(divisor), wide);
    // The sum of opposite zeros loses the sign of a zero.
    return std::copysign(static_cast<float>(std::fma(remainder, wide_reciprocal, estimate)), a);
  }
};

}  // namespace ringcomm
