// bfloat16 to float32 and back as in reduce/host_bfloat16.h, whose loops GCC does not vectorise for
// AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace ringcomm::RINGCOMM_ISA {
namespace {

struct BFloat16Vector {
  static constexpr std::size_t kWidth = 32;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(kUpper));
    for (std::size_t i = 0; i < kHalf; i += 8) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 4 * i));
      _mm256_storeu_ps(values + i, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
      _mm256_storeu_ps(values + kHalf + i, _mm256_castsi256_ps(_mm256_and_si256(words, upper)));
    }
  }

  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(kUpper));
    for (std::size_t i = 0; i < kHalf; i += 8) {
      const __m256i lower_half = _mm256_srli_epi32(rounded(values + i), 16);
      const __m256i upper_half = _mm256_and_si256(rounded(values + kHalf + i), upper);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * i),
                          _mm256_or_si256(lower_half, upper_half));
    }
  }

 private:
  static constexpr std::size_t kHalf = kWidth / 2;
  static constexpr unsigned kUpper = 0xffff0000;

  // BFloat16::rounded
  RINGCOMM_INLINE __m256i rounded(const float* values) {
    const __m256 value = _mm256_loadu_ps(values);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(sum), nan, is_nan));
  }
};

}  // namespace
}  // namespace ringcomm::RINGCOMM_ISA
