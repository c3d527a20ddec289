// The host kernels in AVX2 and F16C instructions.
#if defined(__x86_64__)
#define RINGCOMM_ISA avx2
#define RINGCOMM_TARGET __attribute__((target("avx2,f16c")))
#include <immintrin.h>

#include "reduce/host_vectors.h"

namespace ringcomm::avx2 {
namespace {

// As BFloat16Vector, whose loops GCC does not vectorise for AVX2.
template <>
struct Vector<DType::kBFloat16> {
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

// By F16C.
template <>
struct Vector<DType::kFloat16> {
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

template <>
struct Vector<DType::kFloat8E4M3FN> : Float8Vector<Float8E4M3FN> {};
template <>
struct Vector<DType::kFloat8E5M2> : Float8Vector<Float8E5M2> {};

}  // namespace
}  // namespace ringcomm::avx2

#include "reduce/host_kernels.h"
#endif
