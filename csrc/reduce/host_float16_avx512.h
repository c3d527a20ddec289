// float16 to float32 and back by the instructions of AVX-512.
#pragma once

#include <cstddef>

#include "reduce/host_immintrin.h"

namespace ringcomm::RINGCOMM_ISA {
namespace {

struct Float16Vector {
  static constexpr std::size_t kWidth = 32;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    for (std::size_t i = 0; i < kWidth; i += 16) {
      const auto codes = reinterpret_cast<const __m256i*>(in + 2 * i);
      _mm512_storeu_ps(values + i, _mm512_cvtph_ps(_mm256_loadu_si256(codes)));
    }
  }

  // The instruction keeps the payload of a NaN where Float16::encode keeps only its sign, so the
  // payload is cleared first.
  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    for (std::size_t i = 0; i < kWidth; i += 16) {
      const __m512 value = _mm512_loadu_ps(values + i);
      const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
      const __m512 quiet_nan = _mm512_or_ps(_mm512_and_ps(value, _mm512_set1_ps(-0.0f)),
                                            _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
      const __m512 cleared = _mm512_mask_mov_ps(value, nan, quiet_nan);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i),
                          _mm512_cvtps_ph(cleared, _MM_FROUND_TO_NEAREST_INT));
    }
  }
};

}  // namespace
}  // namespace ringcomm::RINGCOMM_ISA
