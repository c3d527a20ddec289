// Conversions of the small floating types: all codes, and the neighbourhood of every rounding
// boundary, against a sorted list of all values.
#include <cmath>
#include <limits>

#include "check.h"
#include "reduce/device_pack.h"
#include "reduce/small_float.h"
#include "reference.h"

namespace {

using namespace ringcomm;

template <typename Format>
void check_format(DType dtype) {
  const reference::FloatTable& table = reference::float_table(dtype);
  const unsigned num_codes = 1u << (8 * element_size(dtype));
  const auto check_encode = [&](float value) {
    for (float signed_value : {value, -value}) {
      CHECK_WITH(reference::same(dtype, Format::encode(signed_value), table.encode(signed_value)),
                 std::to_string(signed_value));
    }
  };
  for (unsigned code = 0; code < num_codes; ++code) {
    const float value = Format::decode(code);
    const double expected = table.decode(code);
    CHECK_WITH(std::isnan(expected) ? std::isnan(value) : value == expected, std::to_string(code));
    CHECK_EQ(std::signbit(value), std::signbit(expected));
    CHECK(reference::same(dtype, Format::encode(value), table.encode(value)));

    const double next = table.decode((code + 1) % num_codes);
    if (!std::isfinite(expected) || !std::isfinite(next)) continue;
    const float middle = static_cast<float>((expected + next) / 2);
    check_encode(middle);
    check_encode(std::nextafter(middle, 0.0f));
    check_encode(std::nextafter(middle, INFINITY));
  }
  // Around the end of the range, which has no next code.
  const float largest = static_cast<float>(table.decode(table.encode(INFINITY) - 1));
  for (float factor = 1.0f; factor < 2.5f; factor += 1.0f / 1024) check_encode(largest * factor);
  for (float value : {0.0f, std::numeric_limits<float>::denorm_min(),
                      std::numeric_limits<float>::max(), INFINITY}) {
    check_encode(value);
  }
  CHECK(std::isnan(Format::decode(Format::encode(NAN))));
  // A NaN whose payload is in the bits that rounding drops must not become an infinity.
  CHECK(std::isnan(Format::decode(Format::encode(float_of(0x7f800001u)))));
}

// What the device's float8 instructions are documented to do.
struct ModelInstructions {
  static std::uint32_t saturated(DType dtype, float value) {
    if (std::isnan(value)) return 0x7f;
    const reference::FloatTable& table = reference::float_table(dtype);
    const std::uint32_t code = table.encode(value);
    return std::isinf(table.decode(code)) ? code - 1 : code;
  }
  static std::uint32_t to_e4m3x2(float low, float high) {
    return saturated(DType::kFloat8E4M3FN, low) | saturated(DType::kFloat8E4M3FN, high) << 8;
  }
  static std::uint32_t to_e5m2x2(float low, float high) {
    return saturated(DType::kFloat8E5M2, low) | saturated(DType::kFloat8E5M2, high) << 8;
  }
  static std::uint32_t e4m3x2_to_float16x2(std::uint32_t codes) {
    const auto to_float16 = [](std::uint32_t code) {
      const double value = reference::float_table(DType::kFloat8E4M3FN).decode(code);
      return reference::float_table(DType::kFloat16).encode(value);
    };
    return to_float16(codes & 0xff) | to_float16(codes >> 8) << 16;
  }
};

// Rounding looks at the bits down to half an ulp, which are among the upper 16 of a float32, and
// at whether any below is set: so each upper half with a few lower halves is every case.
template <typename Format, DType dtype>
void check_words() {
  using Words = Float8Words<ModelInstructions, dtype>;
  for (std::uint32_t upper = 0; upper < 1 << 16; ++upper) {
    for (std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = float_of(upper << 16 | lower);
      // Each place of a word, beside values that overflow and that do not.
      for (int place = 0; place < 4; ++place) {
        float values[] = {-1.0f, 1e9f, -61440.0f, 2.0f};
        values[place] = value;
        const std::uint32_t word = Words::encode(values);
        for (int i = 0; i < 4; ++i) {
          CHECK_WITH(reference::same(dtype, word >> 8 * i & 0xff, Format::encode(values[i])),
                     std::to_string(values[i]));
        }
      }
    }
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    float values[4];
    Words::decode(code | (code ^ 0xffu) << 8 | (code ^ 0x80u) << 16 | code << 24, values);
    const std::uint32_t codes[] = {code, code ^ 0xffu, code ^ 0x80u, code};
    for (int i = 0; i < 4; ++i) {
      const float expected = Format::decode(codes[i]);
      CHECK(std::isnan(expected) ? std::isnan(values[i]) : bits_of(values[i]) == bits_of(expected));
    }
  }
}

}  // namespace

TEST(float16_converts_as_ieee_754_says) { check_format<Float16>(DType::kFloat16); }
TEST(bfloat16_rounds_to_nearest_even) { check_format<BFloat16>(DType::kBFloat16); }
TEST(float8_e4m3fn_saturates) {
  check_format<Float8E4M3FN>(DType::kFloat8E4M3FN);
  CHECK_EQ(Float8E4M3FN::decode(Float8E4M3FN::encode(1e9f)), 448.0f);
  CHECK_EQ(Float8E4M3FN::decode(Float8E4M3FN::encode(-INFINITY)), -448.0f);
}
TEST(float8_e5m2_overflows_to_infinity) {
  check_format<Float8E5M2>(DType::kFloat8E5M2);
  CHECK_EQ(Float8E5M2::decode(Float8E5M2::encode(61439.0f)), 57344.0f);
  CHECK_EQ(Float8E5M2::decode(Float8E5M2::encode(61440.0f)), INFINITY);
}
TEST(every_bfloat16_nan_is_the_quiet_one) {
  CHECK_EQ(BFloat16::encode(float_of(0xffffffffu)), 0x7fc0u);
}
TEST(float8_by_instructions_has_the_same_bits) {
  check_words<Float8E4M3FN, DType::kFloat8E4M3FN>();
  check_words<Float8E5M2, DType::kFloat8E5M2>();
}
