// How the host kernels convert 16- and 8-bit floats, many at a time: what instruction sets share.
//
// Each host_ISA.cpp defines
//   RINGCOMM_ISA     the namespace,
//   RINGCOMM_TARGET  the function attribute that selects the instructions,
// includes this file, specialises Vector for what its instructions convert faster than what the
// compiler makes of Element's code, and includes reduce/host_kernels.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

// Every rank must compute the same bits on whatever machine it runs: no fused multiply-add. GCC
// turns branches around arithmetic into selections only where floating point does not trap.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off", "no-trapping-math")
#endif

#include "reduce/functors.h"

// The output is one of the inputs or overlaps none: no iteration depends on another.
#if defined(__clang__)
#define RINGCOMM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RINGCOMM_INDEPENDENT _Pragma("GCC ivdep")
#endif

// For the functions of a vector, which are members.
#define RINGCOMM_INLINE [[gnu::always_inline]] RINGCOMM_TARGET static inline

namespace ringcomm {

// Tables for float8, by which AVX2 and AVX-512 decode it.
//
// A float8 value is exact in the upper two bytes of a float32, which are looked up by its code and
// put above zeros. Byte shuffles take tables of 16 entries, too few for 128 magnitudes; but as the
// biases of both exponents differ by an even number, each of these bytes of a normal value comes
// from a part of the code: the low one from the exponent's lowest bit and the mantissa, the high
// one from the exponent's other bits.
//
//   e4m3fn  s eee | e mmm           high       low
//   e5m2    s eeee | e mm     ->    s EEEEEEE  E mmm0000
//
// Subnormals, which have an own pair of tables, and what is not finite are chosen afterwards.
//
// Encoding is Format::encode_wide, which the compiler vectorises; of its words, the lowest bytes
// are gathered for the magnitude and the highest ones for the sign. Invariant: the bits of
// Format::decode and Format::encode.
template <std::size_t n>
using ByteTable = std::array<std::uint8_t, n>;

// Byte `byte` of the values, as float32, of code_of(0), ..., code_of(period - 1), repeated.
template <typename Format, std::size_t n>
constexpr ByteTable<n> byte_table(int byte, std::uint32_t period, auto code_of) {
  ByteTable<n> table{};
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(Format::decode(code_of(i % period)));
    table[i] = static_cast<std::uint8_t>(bits >> 8 * byte);
  }
  return table;
}

// The tables of 16 entries, for each 16 bytes of a vector of kWidth bytes.
template <typename Format, std::size_t kWidth>
struct Float8Tables {
  static constexpr int kMantissaBits = 23 - Format::kShift;
  static constexpr std::uint8_t kMagnitude = Format::kMagnitudeMask;
  static constexpr std::uint8_t kFirstNormal = 1 << kMantissaBits;
  static constexpr std::uint8_t kLastFinite = Format::kFirstNonFinite - 1;

  // Where the two parts of a code meet.
  static constexpr int kHighShift = kMantissaBits + 1;
  static constexpr std::uint8_t kHighIndex = Format::kMagnitudeMask >> kHighShift;
  static constexpr std::uint8_t kLowIndex = (1 << kHighShift) - 1;
  static_assert(kHighIndex < 16 && kLowIndex < 16 && Format::kRebias % (2u << 23) == 0);

  static constexpr auto normal_high = [](std::uint32_t part) {
    return part == 0 ? kFirstNormal : part << kHighShift;
  };
  static constexpr auto normal_low = [](std::uint32_t part) { return part | 1u << kHighShift; };
  static constexpr auto subnormal = [](std::uint32_t part) { return part; };
  static constexpr auto table = [](int byte, auto code_of) {
    return byte_table<Format, kWidth>(byte, 16, code_of);
  };

  alignas(kWidth) static constexpr auto kHigh = table(3, normal_high);
  alignas(kWidth) static constexpr auto kLow = table(2, normal_low);
  alignas(kWidth) static constexpr auto kSubnormalHigh = table(3, subnormal);
  alignas(kWidth) static constexpr auto kSubnormalLow = table(2, subnormal);
  static constexpr std::uint8_t kNonFiniteHigh = 0x7f;
};

namespace RINGCOMM_ISA {
namespace {

// Between kWidth elements in memory and as many floats: load(float*, const std::byte*) and
// store(std::byte*, const float*). 0: element by element.
template <DType dtype>
struct Vector {
  static constexpr std::size_t kWidth = 0;
};

// bfloat16 in loops that the compiler vectorises: two elements at a time, in the halves of a word.
// So no vector has to be widened, or narrowed again, which would move its parts. The elements in
// lower halves come first, then those in upper halves, 32 at a time.
struct BFloat16Vector {
  static constexpr std::size_t kWidth = 32;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    std::uint32_t words[kWords];
    std::memcpy(words, in, sizeof(words));
    for (std::size_t i = 0; i < kWords; ++i) {
      values[i] = BFloat16::decode(words[i]);
      values[kWords + i] = float_of(words[i] & kUpper);
    }
  }

  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    std::uint32_t words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint32_t lower = BFloat16::rounded(values[i]);
      const std::uint32_t upper = BFloat16::rounded(values[kWords + i]);
      words[i] = lower >> 16 | (upper & kUpper);
    }
    std::memcpy(out, words, sizeof(words));
  }

 private:
  static constexpr std::size_t kWords = kWidth / 2;
  static constexpr std::uint32_t kUpper = 0xffff0000;
};

}  // namespace
}  // namespace RINGCOMM_ISA

}  // namespace ringcomm
