#include "reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// Products are rounded before they are added, as the kernels do, wherever a machine could fuse
// both.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

namespace reference {

FloatTable::FloatTable(int exponent_bits, int mantissa_bits, bool has_infinity)
    : sign_bit_(1u << (exponent_bits + mantissa_bits)), has_infinity_(has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned per_binade = 1u << mantissa_bits;
  const unsigned first_non_finite = has_infinity ? sign_bit_ - per_binade : sign_bit_ - 1;
  for (unsigned code = 0; code < first_non_finite; ++code) {
    const int exponent = static_cast<int>(code / per_binade);
    const double mantissa = code % per_binade + (exponent == 0 ? 0.0 : per_binade);
    magnitudes_.push_back(std::ldexp(mantissa, std::max(exponent, 1) - bias - mantissa_bits));
  }
  const double last_ulp = magnitudes_.back() - magnitudes_[magnitudes_.size() - 2];
  overflow_ = magnitudes_.back() + last_ulp / 2;
}

double FloatTable::decode(unsigned code) const {
  const unsigned magnitude = code & (sign_bit_ - 1);
  double value = std::numeric_limits<double>::quiet_NaN();
  if (magnitude < magnitudes_.size()) value = magnitudes_[magnitude];
  if (has_infinity_ && magnitude == magnitudes_.size()) value = INFINITY;
  return code & sign_bit_ ? -value : value;
}

unsigned FloatTable::encode(double value) const {
  const unsigned sign = std::signbit(value) ? sign_bit_ : 0;
  if (std::isnan(value)) return sign | (sign_bit_ - 1);
  const double magnitude = std::fabs(value);
  const unsigned largest = static_cast<unsigned>(magnitudes_.size()) - 1;
  if (magnitude >= overflow_) return sign | (has_infinity_ ? largest + 1 : largest);
  const auto above = std::lower_bound(magnitudes_.begin(), magnitudes_.end(), magnitude);
  if (above == magnitudes_.end()) return sign | largest;
  unsigned code = static_cast<unsigned>(above - magnitudes_.begin());
  if (*above != magnitude) {
    const double up = *above - magnitude;
    const double down = magnitude - *(above - 1);
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return sign | code;
}

const FloatTable& float_table(DType dtype) {
  static const FloatTable float16(5, 10, true);
  static const FloatTable bfloat16(8, 7, true);
  static const FloatTable e4m3fn(4, 3, false);
  static const FloatTable e5m2(5, 2, true);
  switch (dtype) {
    case DType::kFloat16:
      return float16;
    case DType::kBFloat16:
      return bfloat16;
    case DType::kFloat8E4M3FN:
      return e4m3fn;
    default:
      return e5m2;
  }
}

std::uint64_t read_bits(const void* data, std::size_t nbytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, data, nbytes);  // little-endian, as every machine ringcomm runs on
  return bits;
}

double to_double(DType dtype, std::uint64_t bits) {
  if (dtype == DType::kFloat64) return std::bit_cast<double>(bits);
  if (dtype == DType::kFloat32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return float_table(dtype).decode(static_cast<unsigned>(bits));
}

std::uint64_t from_double(DType dtype, double value) {
  if (dtype == DType::kFloat64) return std::bit_cast<std::uint64_t>(value);
  if (dtype == DType::kFloat32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return float_table(dtype).encode(value);
}

namespace {

// Double arithmetic rounded to float32 is float32 arithmetic: 53 bits >= 2 * 24 + 2.
double round_accumulator(DType dtype, double value) {
  return dtype == DType::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
}

// Zeros have an order, too.
bool is_less(double a, double b) {
  return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

double combined(const Reduction& r, double a, double b) {
  if (r.op == ReduceOp::kProduct) return round_accumulator(r.dtype, a * b);
  if (r.op == ReduceOp::kMin || r.op == ReduceOp::kMax) {
    if (std::isnan(a)) return a;
    const bool takes = r.op == ReduceOp::kMin ? is_less(b, a) : is_less(a, b);
    return std::isnan(b) || takes ? b : a;
  }
  return round_accumulator(r.dtype, a + b);
}

double reduce_real(const Reduction& r, std::vector<double> values) {
  if (r.op == ReduceOp::kPremulSum && r.scaled_input >= 0) {
    double& value = values[r.scaled_input];
    value = round_accumulator(r.dtype, value * round_accumulator(r.dtype, r.factor));
    value = to_double(r.dtype, from_double(r.dtype, value));  // as others receive it
  }
  while (values.size() > 1) {
    std::vector<double> next;
    for (std::size_t k = 0; k + 1 < values.size(); k += 2) {
      next.push_back(combined(r, values[k], values[k + 1]));
    }
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = next;
  }
  double result = values[0];
  if (r.op == ReduceOp::kAvg) {
    result = round_accumulator(r.dtype, result / round_accumulator(r.dtype, r.divisor));
  }
  return result;
}

std::int64_t sign_extend(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::kInt32:
      return static_cast<std::int32_t>(bits);
    case DType::kInt16:
      return static_cast<std::int16_t>(bits);
    case DType::kInt8:
      return static_cast<std::int8_t>(bits);
    default:
      return static_cast<std::int64_t>(bits);
  }
}

std::uint64_t reduce_integer(const Reduction& r, const std::vector<std::uint64_t>& values) {
  if (r.op == ReduceOp::kAvg) {
    __extension__ __int128 sum = 0;
    for (const std::uint64_t bits : values) sum += sign_extend(r.dtype, bits);
    return static_cast<std::uint64_t>(sum / r.divisor);
  }
  std::int64_t result = sign_extend(r.dtype, values[0]);
  for (std::size_t k = 1; k < values.size(); ++k) {
    const std::int64_t value = sign_extend(r.dtype, values[k]);
    std::uint64_t wrapped = static_cast<std::uint64_t>(result);
    switch (r.op) {
      case ReduceOp::kProduct:
        wrapped *= static_cast<std::uint64_t>(value);
        break;
      case ReduceOp::kMin:
        wrapped = static_cast<std::uint64_t>(std::min(result, value));
        break;
      case ReduceOp::kMax:
        wrapped = static_cast<std::uint64_t>(std::max(result, value));
        break;
      case ReduceOp::kBand:
        wrapped &= static_cast<std::uint64_t>(value);
        break;
      case ReduceOp::kBor:
        wrapped |= static_cast<std::uint64_t>(value);
        break;
      case ReduceOp::kBxor:
        wrapped ^= static_cast<std::uint64_t>(value);
        break;
      default:
        wrapped += static_cast<std::uint64_t>(value);
    }
    const int unused_bits = 64 - 8 * static_cast<int>(ringcomm::element_size(r.dtype));
    result = sign_extend(r.dtype, wrapped << unused_bits >> unused_bits);
  }
  return static_cast<std::uint64_t>(result);
}

std::uint64_t reduce_bool(const Reduction& r, const std::vector<std::uint64_t>& values) {
  const auto num_true = values.size() - std::count(values.begin(), values.end(), 0);
  switch (r.op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return num_true == values.size();
    case ReduceOp::kBxor:
      return num_true % 2;
    default:
      return num_true > 0;
  }
}

}  // namespace

std::uint64_t reduce(const Reduction& r, const std::vector<std::uint64_t>& values) {
  if (r.dtype == DType::kBool) return reduce_bool(r, values);
  if (!ringcomm::is_floating_point(r.dtype)) return reduce_integer(r, values);
  std::vector<double> reals;
  for (std::uint64_t bits : values) reals.push_back(to_double(r.dtype, bits));
  return from_double(r.dtype, reduce_real(r, reals));
}

bool same(DType dtype, std::uint64_t a, std::uint64_t b) {
  if (a == b) return true;
  return ringcomm::is_floating_point(dtype) && std::isnan(to_double(dtype, a)) &&
         std::isnan(to_double(dtype, b));
}

}  // namespace reference
