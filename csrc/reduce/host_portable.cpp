// The host kernels in whatever instructions the compiler takes for granted. AArch64 takes for
// granted those that convert float16.
#define RINGCOMM_ISA portable
#define RINGCOMM_TARGET
#include "reduce/host_vectors.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ringcomm::portable {
namespace {

template <>
struct Vector<DType::kBFloat16> : BFloat16Vector {};

#if defined(__aarch64__)
template <>
struct Vector<DType::kFloat16> {
  static constexpr std::size_t kWidth = 32;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    for (std::size_t i = 0; i < kWidth; i += 4) {
      const uint8x8_t codes = vld1_u8(reinterpret_cast<const std::uint8_t*>(in + 2 * i));
      vst1q_f32(values + i, vcvt_f32_f16(vreinterpret_f16_u8(codes)));
    }
  }

  // The instruction keeps the payload of a NaN where Float16::encode keeps only its sign, so the
  // payload is cleared first.
  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    for (std::size_t i = 0; i < kWidth; i += 4) {
      const float32x4_t value = vld1q_f32(values + i);
      const uint32x4_t bits = vreinterpretq_u32_f32(value);
      const uint32x4_t quiet_nan =
          vorrq_u32(vandq_u32(bits, vdupq_n_u32(0x80000000u)), vdupq_n_u32(0x7fc00000u));
      const uint32x4_t cleared = vbslq_u32(vceqq_f32(value, value), bits, quiet_nan);
      const float16x4_t codes = vcvt_f16_f32(vreinterpretq_f32_u32(cleared));
      vst1_u8(reinterpret_cast<std::uint8_t*>(out + 2 * i), vreinterpret_u8_f16(codes));
    }
  }
};
#endif

}  // namespace
}  // namespace ringcomm::portable

#include "reduce/host_kernels.h"
