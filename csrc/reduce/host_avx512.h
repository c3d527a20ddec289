// 16- and 8-bit floats by AVX-512: float8 64 elements at a time, as reduce/host_vectors.h says.
// With RINGCOMM_VBMI, one instruction looks up 128 entries.
#pragma once

#include "reduce/host_vectors.h"

// GCC 12 takes the operands that its own intrinsics leave undefined for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace ringcomm::RINGCOMM_ISA {
namespace {

template <>
struct Vector<DType::kBFloat16> : BFloat16Vector {};

template <>
struct Vector<DType::kFloat16> {
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

// Selects from each 16 bytes the lowest bytes of the four words, then the highest ones, twice.
constexpr ByteTable<64> lowest_and_highest() {
  ByteTable<64> table{};
  for (std::size_t i = 0; i < 64; ++i) table[i] = i % 4 * 4 + (i % 8 < 4 ? 0 : 3);
  return table;
}

template <typename Format>
struct Float8Vector {
  static constexpr std::size_t kWidth = 64;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    const __m512i codes = transposed(_mm512_loadu_si512(in));
    const Bytes bytes = looked_up(codes);
    const __m512i high =
        _mm512_or_si512(bytes.high, _mm512_and_si512(codes, _mm512_set1_epi8(-128)));
    const __m512i halves[] = {_mm512_unpacklo_epi8(bytes.low, high),
                              _mm512_unpackhi_epi8(bytes.low, high)};
    for (std::size_t i = 0; i < 2; ++i) {
      const __m512i zero = _mm512_setzero_si512();
      _mm512_storeu_si512(values + 32 * i, _mm512_unpacklo_epi16(zero, halves[i]));
      _mm512_storeu_si512(values + 32 * i + 16, _mm512_unpackhi_epi16(zero, halves[i]));
    }
  }

  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    std::uint32_t wide[kWidth];
    RINGCOMM_INDEPENDENT
    for (std::size_t i = 0; i < kWidth; ++i) wide[i] = Format::encode_wide(values[i]);
    __m512i gathered[4];
    for (std::size_t i = 0; i < 4; ++i) {
      gathered[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(wide + 16 * i), table(kGather));
    }
    const __m512i first = _mm512_unpacklo_epi32(gathered[0], gathered[1]);
    const __m512i second = _mm512_unpacklo_epi32(gathered[2], gathered[3]);
    const __m512i codes = _mm512_unpacklo_epi64(first, second);
    const __m512i highest = _mm512_unpackhi_epi64(first, second);
    constexpr int kSecondWhereThird = 0xd8;
    _mm512_storeu_si512(out, transposed(_mm512_ternarylogic_epi32(
                                 codes, highest, _mm512_set1_epi8(-128), kSecondWhereThird)));
  }

 private:
  struct Bytes {
    __m512i low, high;  // but for the sign
  };

  // Vectors are unpacked, and gathered, by 16 bytes, each of which goes to four: as a 4 x 4 matrix
  // of words, they are transposed between the order in memory and that.
  RINGCOMM_INLINE __m512i transposed(__m512i bytes) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
  }

  RINGCOMM_INLINE __m512i table(const ByteTable<kWidth>& entries) {
    return _mm512_load_si512(entries.data());
  }

#ifdef RINGCOMM_VBMI
  static constexpr auto lower_half = [](std::uint32_t part) { return part; };
  static constexpr auto upper_half = [](std::uint32_t part) { return part + 64; };
  alignas(64) static constexpr auto kLow0 = byte_table<Format, 64>(2, 64, lower_half);
  alignas(64) static constexpr auto kLow1 = byte_table<Format, 64>(2, 64, upper_half);
  alignas(64) static constexpr auto kHigh0 = byte_table<Format, 64>(3, 64, lower_half);
  alignas(64) static constexpr auto kHigh1 = byte_table<Format, 64>(3, 64, upper_half);

  RINGCOMM_INLINE Bytes looked_up(__m512i codes) {
    return {_mm512_permutex2var_epi8(table(kLow0), codes, table(kLow1)),
            _mm512_permutex2var_epi8(table(kHigh0), codes, table(kHigh1))};
  }
#else
  RINGCOMM_INLINE Bytes looked_up(__m512i codes) {
    using Tables = Float8Tables<Format, kWidth>;
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(Tables::kMagnitude));
    const __mmask64 subnormal =
        _mm512_cmplt_epi8_mask(magnitude, _mm512_set1_epi8(Tables::kFirstNormal));
    const __mmask64 non_finite =
        _mm512_cmpgt_epi8_mask(magnitude, _mm512_set1_epi8(Tables::kLastFinite));
    const __m512i low_index = _mm512_and_si512(codes, _mm512_set1_epi8(Tables::kLowIndex));
    const __m512i high_index = _mm512_and_si512(_mm512_srli_epi16(codes, Tables::kHighShift),
                                                _mm512_set1_epi8(Tables::kHighIndex));
    const __m512i low = _mm512_shuffle_epi8(table(Tables::kLow), low_index);
    const __m512i high = _mm512_shuffle_epi8(table(Tables::kHigh), high_index);
    return {_mm512_mask_shuffle_epi8(low, subnormal, table(Tables::kSubnormalLow), low_index),
            _mm512_mask_mov_epi8(
                _mm512_mask_shuffle_epi8(high, subnormal, table(Tables::kSubnormalHigh), low_index),
                non_finite, _mm512_set1_epi8(Tables::kNonFiniteHigh))};
  }
#endif

  alignas(64) static constexpr auto kGather = lowest_and_highest();
};

template <>
struct Vector<DType::kFloat8E4M3FN> : Float8Vector<Float8E4M3FN> {};
template <>
struct Vector<DType::kFloat8E5M2> : Float8Vector<Float8E5M2> {};

}  // namespace
}  // namespace ringcomm::RINGCOMM_ISA
