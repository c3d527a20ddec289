// Conversions of the small floating types: all codes, and the neighbourhood of every rounding
// boundary, against a sorted list of all values.
#include <cmath>
#include <limits>

#include "check.h"
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
