// float16 to float32 and back by the F16C instructions, eight elements at a time.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace ringcomm::f16c {

inline constexpr std::size_t kWidth = 8;

[[gnu::always_inline, gnu::target("avx2,f16c")]] inline void load(float* values,
                                                                  const std::byte* in) {
  _mm256_storeu_ps(values, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
}

// The instruction keeps the payload of a NaN where Float16::encode keeps only its sign, so the
// payload is cleared first.
[[gnu::always_inline, gnu::target("avx2,f16c")]] inline void store(std::byte* out,
                                                                   const float* values) {
  const __m256 value = _mm256_loadu_ps(values);
  const __m256 quiet_nan = _mm256_or_ps(_mm256_and_ps(value, _mm256_set1_ps(-0.0f)),
                                        _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  const __m256 cleared =
      _mm256_blendv_ps(value, quiet_nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm256_cvtps_ph(cleared, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace ringcomm::f16c
