// float16 to float32 and back by the F16C instructions, eight elements at a time.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "reduce/functors.h"

namespace ringcomm::f16c {

#define RINGCOMM_F16C_TARGET __attribute__((target("avx2,f16c")))

RINGCOMM_F16C_TARGET inline void load_block(float* block, const std::byte* in, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    _mm256_storeu_ps(block + i, _mm256_cvtph_ps(half));
  }
  for (; i < n; ++i) {
    std::uint16_t half;
    std::memcpy(&half, in + 2 * i, 2);
    block[i] = Float16::decode(half);
  }
}

// The instruction keeps the payload of a NaN; Float16::encode makes every NaN the quiet one of its
// sign, so the payload is cleared first.
RINGCOMM_F16C_TARGET inline void store_block(std::byte* out, const float* block, std::size_t n) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 value = _mm256_loadu_ps(block + i);
    const __m256 quiet = _mm256_or_ps(_mm256_and_ps(value, sign), nan);
    value = _mm256_blendv_ps(value, quiet, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) {
    const std::uint16_t half = static_cast<std::uint16_t>(Float16::encode(block[i]));
    std::memcpy(out + 2 * i, &half, 2);
  }
}

}  // namespace ringcomm::f16c
