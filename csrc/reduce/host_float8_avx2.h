// float8 to float32 and back, 32 elements at a time, as host_float8.h says.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "reduce/host_float8.h"

namespace ringcomm::RINGCOMM_ISA {
namespace {

template <typename Format>
struct Float8Vector {
  static constexpr std::size_t kWidth = 32;

  // Vectors are unpacked, and packed, in halves of 16 bytes, so that elements are in another order
  // among the values: 0 to 3, 16 to 19, 4 to 7, 20 to 23 and so on.
  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    const __m256i codes = read(in);
    const Bytes bytes = looked_up(codes);
    const __m256i high = _mm256_or_si256(bytes.high, _mm256_and_si256(codes, every(0x80)));
    const __m256i halves[] = {_mm256_unpacklo_epi8(bytes.low, high),
                              _mm256_unpackhi_epi8(bytes.low, high)};
    for (std::size_t i = 0; i < 2; ++i) {
      const __m256i zero = _mm256_setzero_si256();
      write(values + 16 * i, _mm256_unpacklo_epi16(zero, halves[i]));
      write(values + 16 * i + 8, _mm256_unpackhi_epi16(zero, halves[i]));
    }
  }

  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    std::uint32_t wide[kWidth];
    RINGCOMM_INDEPENDENT
    for (std::size_t i = 0; i < kWidth; ++i) wide[i] = Format::encode_wide(values[i]);
    __m256i words[4], codes[4];
    for (std::size_t i = 0; i < 4; ++i) {
      words[i] = read(wide + 8 * i);
      codes[i] = _mm256_and_si256(words[i], _mm256_set1_epi32(0x7f));
    }
    const __m256i magnitude = _mm256_packus_epi16(_mm256_packus_epi32(codes[0], codes[1]),
                                                  _mm256_packus_epi32(codes[2], codes[3]));
    // Saturation keeps what is negative.
    const __m256i negative = _mm256_packs_epi16(_mm256_packs_epi32(words[0], words[1]),
                                                _mm256_packs_epi32(words[2], words[3]));
    write(out, _mm256_or_si256(magnitude, _mm256_and_si256(negative, every(0x80))));
  }

 private:
  struct Bytes {
    __m256i low, high;  // but for the sign
  };

  RINGCOMM_INLINE __m256i read(const void* bytes) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
  }
  RINGCOMM_INLINE void write(void* bytes, __m256i vector) {
    _mm256_storeu_si256(static_cast<__m256i*>(bytes), vector);
  }
  RINGCOMM_INLINE __m256i every(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }

  RINGCOMM_INLINE Bytes looked_up(__m256i codes) {
    using Tables = Float8Tables<Format, kWidth>;
    const __m256i magnitude = _mm256_and_si256(codes, every(Tables::kMagnitude));
    const __m256i subnormal = _mm256_cmpgt_epi8(every(Tables::kFirstNormal), magnitude);
    const __m256i non_finite = _mm256_cmpgt_epi8(magnitude, every(Tables::kLastFinite));
    const __m256i low_index = _mm256_and_si256(codes, every(Tables::kLowIndex));
    const __m256i high_index =
        _mm256_and_si256(_mm256_srli_epi16(codes, Tables::kHighShift), every(Tables::kHighIndex));
    const __m256i low = _mm256_shuffle_epi8(read(Tables::kLow.data()), low_index);
    const __m256i high = _mm256_shuffle_epi8(read(Tables::kHigh.data()), high_index);
    const __m256i subnormal_low =
        _mm256_shuffle_epi8(read(Tables::kSubnormalLow.data()), low_index);
    const __m256i subnormal_high =
        _mm256_shuffle_epi8(read(Tables::kSubnormalHigh.data()), low_index);
    return {_mm256_blendv_epi8(low, subnormal_low, subnormal),
            _mm256_or_si256(_mm256_blendv_epi8(high, subnormal_high, subnormal),
                            _mm256_and_si256(non_finite, every(Tables::kNonFiniteHigh)))};
  }
};

}  // namespace
}  // namespace ringcomm::RINGCOMM_ISA
