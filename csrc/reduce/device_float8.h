// float8 by the conversions that devices have from compute capability 8.9 on, two values at a time.
//
// The instructions saturate to the largest finite value. That is what e4m3fn wants. e5m2 wants
// infinity from 61440 on, which lies half-way between the largest finite value, 57344, and the next
// power of two, and is a tie that goes to the even one. There the instruction gives the largest
// finite code, and infinity is the next code:
//
//   |x| <  61440   rounded: at most 57344, nothing saturates
//   |x| >= 61440   57344 by saturation; plus 1 in the code, infinity
//   NaN            the comparison is false, and NaN stays
//
// Decoding goes through float16, which holds every value of both; a code of e5m2 is the upper half
// of a float16.
// Invariant: the bits of SmallFloat, but for the sign and payload of a NaN.
#pragma once

#include <cmath>
#include <cstdint>

#include "reduce/host_device.h"
#include "reduce/small_float.h"
#include "reduce/types.h"

namespace ringcomm {

// Two values at a time, `low` in the lower half; each rounds to nearest even.
struct Float8Instructions {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  __device__ __forceinline__ static std::uint32_t e4m3x2_to_float16x2(std::uint32_t codes) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
    return halves;
  }
  __device__ __forceinline__ static std::uint32_t to_e4m3x2(float low, float high) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  }
  __device__ __forceinline__ static std::uint32_t to_e5m2x2(float low, float high) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  }
  static constexpr bool kExist = true;
#else
  static constexpr bool kExist = false;
#endif
};

// Four values of a word, the lowest byte first.
template <typename Instructions, DType dtype>
struct Float8Words {
  RINGCOMM_HOST_DEVICE static void decode(std::uint32_t word, float* values) {
    std::uint32_t low, high;
    if constexpr (dtype == DType::kFloat8E4M3FN) {
      low = Instructions::e4m3x2_to_float16x2(word & 0xffffu);
      high = Instructions::e4m3x2_to_float16x2(word >> 16);
    } else {
      low = (word & 0xffu) << 8 | (word & 0xff00u) << 16;
      high = (word & 0xff0000u) >> 8 | (word & 0xff000000u);
    }
    values[0] = Float16::decode(low & 0xffffu);
    values[1] = Float16::decode(low >> 16);
    values[2] = Float16::decode(high & 0xffffu);
    values[3] = Float16::decode(high >> 16);
  }

  RINGCOMM_HOST_DEVICE static std::uint32_t encode(const float* values) {
    return encode_pair(values[0], values[1]) | encode_pair(values[2], values[3]) << 16;
  }

 private:
  RINGCOMM_HOST_DEVICE static std::uint32_t encode_pair(float low, float high) {
    if constexpr (dtype == DType::kFloat8E4M3FN) {
      return Instructions::to_e4m3x2(low, high);
    } else {
      constexpr float kOverflow = 61440.0f;
      std::uint32_t codes = Instructions::to_e5m2x2(low, high);
      if (std::fabs(low) >= kOverflow) codes += 1u;
      if (std::fabs(high) >= kOverflow) codes += 1u << 8;
      return codes;
    }
  }
};

}  // namespace ringcomm
