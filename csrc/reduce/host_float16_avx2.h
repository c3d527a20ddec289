// float16 to float32 and back by the F16C instructions.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace ringcomm::RINGCOMM_ISA {
namespace {

struct Float16Vector {
  static constexpr std::size_t kWidth = 32;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    for (std::size_t i = 0; i < kWidth; i += 8) {
      const auto codes = reinterpret_cast<const __m128i*>(in + 2 * i);
      _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128(codes)));
    }
  }

  // The instruction keeps the payload of a NaN where Float16::encode keeps only its sign, so the
  // payload is cleared first.
  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    for (std::size_t i = 0; i < kWidth; i += 8) {
      const __m256 value = _mm256_loadu_ps(values + i);
      const __m256 quiet_nan = _mm256_or_ps(_mm256_and_ps(value, _mm256_set1_ps(-0.0f)),
                                            _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
      const __m256 cleared =
          _mm256_blendv_ps(value, quiet_nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                       _mm256_cvtps_ph(cleared, _MM_FROUND_TO_NEAREST_INT));
    }
  }
};

}  // namespace
}  // namespace ringcomm::RINGCOMM_ISA
