// How vectors convert float8, many elements at a time.
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
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reduce/small_float.h"

namespace ringcomm {

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

}  // namespace ringcomm
