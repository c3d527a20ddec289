// Reductions on host memory: every dtype, op and instruction set against a scalar reference, over
// counts, misalignments, numbers of inputs and copies, in place and out of place.
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>

#include "check.h"
#include "reduce/host.h"
#include "reduce/small_float.h"
#include "reference.h"

namespace {

using namespace ringcomm;

constexpr std::size_t kMaxCount = 4100;

std::vector<ReduceOp> ops_of(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int o = 0; o < kNumReduceOps; ++o) {
    if (supports(dtype, static_cast<ReduceOp>(o))) ops.push_back(static_cast<ReduceOp>(o));
  }
  return ops;
}

// Exactly `nbytes` at a chosen misalignment, so that AddressSanitizer sees every byte too far.
class Buffer {
 public:
  Buffer(std::size_t nbytes, std::size_t misalignment)
      : storage_(new std::byte[nbytes + misalignment]), data_(storage_.get() + misalignment) {}
  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_;
};

// Numbers of mixed magnitude and any bits at all: infinities, NaNs, subnormals, both zeros. NaNs
// are thinned out, or they would be all that a sum of many inputs shows.
std::vector<std::byte> random_elements(DType dtype, std::size_t count, std::mt19937_64& random) {
  const std::size_t width = element_size(dtype);
  std::vector<std::byte> data(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = random();
    if (dtype == DType::kBool) {
      bits = random() % 2 ? bits % 256 : 0;
    } else if (is_floating_point(dtype) && random() % 64 != 0) {
      const int scale = static_cast<int>(random() % 12) - 6;
      const double number = std::ldexp(static_cast<double>(bits % 4096) - 2048, scale - 8);
      bits = reference::from_double(dtype, random() % 16 ? number : 0.0 * number);
    }
    std::memcpy(data.data() + i * width, &bits, width);
  }
  return data;
}

std::string describe(const Reduction& r, const char* isa, int num_inputs, std::size_t count,
                     std::size_t index) {
  return std::string(name(r.dtype)) + " " + name(r.op) + " " + isa + ", " +
         std::to_string(num_inputs) + " inputs, count " + std::to_string(count) + ", element " +
         std::to_string(index);
}

struct Case {
  Reduction reduction;
  std::vector<std::vector<std::byte>> inputs;  // kMaxCount elements each
  std::vector<std::uint64_t> expected;
};

Case make_case(DType dtype, ReduceOp op, int num_inputs, std::mt19937_64& random) {
  Case c{{.dtype = dtype, .op = op}, {}, {}};
  if (op == ReduceOp::kAvg) c.reduction.divisor = num_inputs == 1 ? 3 : num_inputs;
  if (op == ReduceOp::kPremulSum) {
    c.reduction.scaled_input = static_cast<int>(random() % num_inputs);
    c.reduction.factor = 1.0 / 3;
  }
  for (int k = 0; k < num_inputs; ++k) {
    c.inputs.push_back(random_elements(dtype, kMaxCount, random));
  }
  const std::size_t width = element_size(dtype);
  std::vector<std::uint64_t> values(num_inputs);
  for (std::size_t i = 0; i < kMaxCount; ++i) {
    for (int k = 0; k < num_inputs; ++k) {
      values[k] = reference::read_bits(c.inputs[k].data() + i * width, width);
    }
    c.expected.push_back(reference::reduce(c.reduction, values));
  }
  return c;
}

// The kernel reduces the elements behind the first `begin` ones. `in_place`: over the last input.
void check_case(const Case& c, const HostIsa& isa, std::size_t begin, std::size_t count,
                std::size_t misalignment, bool in_place) {
  const Reduction& r = c.reduction;
  const std::size_t width = element_size(r.dtype);
  const int num_inputs = static_cast<int>(c.inputs.size());
  std::vector<Buffer> buffers;
  std::vector<const void*> inputs;
  for (int k = 0; k < num_inputs; ++k) {
    // Misaligned by elements, by bytes, and each pointer differently.
    const Buffer& buffer =
        buffers.emplace_back((begin + count) * width, misalignment * (k + 1) % 19);
    if (count > 0) {
      std::memcpy(buffer.data() + begin * width, c.inputs[k].data(), count * width);
    }
    inputs.push_back(buffer.data());
  }
  std::byte* const output = in_place
                                ? buffers.back().data() + begin * width
                                : buffers.emplace_back(count * width, misalignment % 17).data();
  (*isa.table)[static_cast<int>(r.dtype)][static_cast<int>(r.op)](r, inputs.data(), num_inputs,
                                                                  begin, output, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t mask = width == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * width) - 1;
    const std::uint64_t got = reference::read_bits(output + i * width, width);
    CHECK_WITH(reference::same(r.dtype, got, c.expected[i] & mask),
               describe(r, isa.name, num_inputs, count, i));
  }
}

void check_all_isas(const Case& c) {
  constexpr std::size_t kCounts[] = {0,  1,  2,  3,  7,  8,   15,  16,  17,   31,
                                     32, 33, 63, 64, 65, 255, 256, 257, 1000, kMaxCount};
  const std::size_t num_inputs = c.inputs.size();
  for (const HostIsa& isa : supported_host_isas()) {
    for (std::size_t count : kCounts) {
      if (num_inputs == 64 && count > 1 && count % 16 != 1) continue;
      for (std::size_t misalignment :
           {std::size_t{0}, element_size(c.reduction.dtype), std::size_t{3}}) {
        check_case(c, isa, 0, count, misalignment, false);
        check_case(c, isa, misalignment + num_inputs % 3, count, misalignment, true);
      }
    }
  }
}

void check_dtype(DType dtype) {
  std::mt19937_64 random(static_cast<int>(dtype));
  for (ReduceOp op : ops_of(dtype)) {
    for (int num_inputs : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
      check_all_isas(make_case(dtype, op, num_inputs, random));
    }
  }
}

void run(const HostIsa& isa, const Reduction& r, std::span<const void* const> inputs, void* output,
         std::size_t count) {
  (*isa.table)[static_cast<int>(r.dtype)][static_cast<int>(r.op)](
      r, inputs.data(), static_cast<int>(inputs.size()), 0, output, count);
}

// Every pair of codes is decoded, at every place of a vector, and the sums are encoded.
void check_pairs(DType dtype) {
  const reference::FloatTable& table = reference::float_table(dtype);
  std::vector<std::uint8_t> a, b, expected;
  for (unsigned first = 0; first < 256; ++first) {
    for (unsigned second = 0; second < 256; ++second) {
      a.push_back(static_cast<std::uint8_t>(first));
      b.push_back(static_cast<std::uint8_t>(first + second));
      const double sum = table.decode(a.back()) + table.decode(b.back());
      expected.push_back(static_cast<std::uint8_t>(table.encode(sum)));
    }
  }
  std::vector<std::uint8_t> output(a.size());
  const void* inputs[] = {a.data(), b.data()};
  for (const HostIsa& isa : supported_host_isas()) {
    run(isa, {dtype, ReduceOp::kSum}, inputs, output.data(), output.size());
    for (std::size_t i = 0; i < output.size(); ++i) {
      CHECK_WITH(reference::same(dtype, output[i], expected[i]),
                 isa.name + (": " + std::to_string(a[i])) + " + " + std::to_string(b[i]));
    }
  }
}

// Any float32 is encoded as the factor of ones. Rounding looks at the bits down to half an ulp,
// which are among the upper 16, and at whether any below is set: near the type's range every upper
// half is tried, and elsewhere some.
void check_encoding(DType dtype) {
  const reference::FloatTable& table = reference::float_table(dtype);
  constexpr std::size_t kCount = 67;  // a vector of any instruction set, and some
  std::vector<std::uint8_t> ones(kCount), output(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ones[i] = static_cast<std::uint8_t>(table.encode(i % 2 ? -1.0 : 1.0));
  }
  const void* inputs[] = {ones.data()};
  Reduction reduction{dtype, ReduceOp::kPremulSum};
  reduction.scaled_input = 0;
  const std::vector<HostIsa> isas = supported_host_isas();
  for (std::uint32_t upper = 0; upper < 1 << 15; ++upper) {
    const int exponent = static_cast<int>(upper >> 7) - 127;
    if ((exponent < -18 || exponent > 17) && upper % 61 != 0 && upper < 0x7f7f) continue;
    for (std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = float_of(upper << 16 | lower);
      reduction.factor = value;
      const unsigned expected[] = {table.encode(value), table.encode(-value)};
      for (const HostIsa& isa : isas) {
        run(isa, reduction, inputs, output.data(), kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          CHECK_WITH(reference::same(dtype, output[i], expected[i % 2]),
                     isa.name + (": " + std::to_string(value)));
        }
      }
      if (upper >= 0x7f80 && lower != 0) break;  // one NaN
    }
  }
}

template <typename T>
T reduce_two(DType dtype, ReduceOp op, T a, T b, int divisor = 1) {
  const void* inputs[] = {&a, &b};
  T result{};
  reduce_host({dtype, op, divisor}, inputs, 2, &result, {}, 1);
  return result;
}

}  // namespace

TEST(float64_equals_reference) { check_dtype(DType::kFloat64); }
TEST(float32_equals_reference) { check_dtype(DType::kFloat32); }
TEST(float16_equals_reference) { check_dtype(DType::kFloat16); }
TEST(bfloat16_equals_reference) { check_dtype(DType::kBFloat16); }
TEST(float8_e4m3fn_equals_reference) { check_dtype(DType::kFloat8E4M3FN); }
TEST(float8_e5m2_equals_reference) { check_dtype(DType::kFloat8E5M2); }
TEST(int64_equals_reference) { check_dtype(DType::kInt64); }
TEST(int32_equals_reference) { check_dtype(DType::kInt32); }
TEST(int16_equals_reference) { check_dtype(DType::kInt16); }
TEST(int8_equals_reference) { check_dtype(DType::kInt8); }
TEST(uint8_equals_reference) { check_dtype(DType::kUInt8); }
TEST(bool_equals_reference) { check_dtype(DType::kBool); }

TEST(nan_propagates_through_min_and_max_from_either_side) {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    CHECK(std::isnan(reduce_two(DType::kFloat32, op, NAN, 1.0f)));
    CHECK(std::isnan(reduce_two(DType::kFloat32, op, 1.0f, NAN)));
    CHECK(std::isnan(reduce_two<double>(DType::kFloat64, op, NAN, INFINITY)));
  }
}

TEST(every_float16_nan_is_a_quiet_one_on_every_instruction_set) {
  std::vector<std::uint16_t> input(100), output(100);
  for (std::size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<std::uint16_t>((i % 2 ? 0xfc01 : 0x7c01) + i);
  }
  const void* inputs[] = {input.data()};
  for (const HostIsa& isa : supported_host_isas()) {
    run(isa, {DType::kFloat16, ReduceOp::kSum}, inputs, output.data(), input.size());
    for (std::size_t i = 0; i < input.size(); ++i) CHECK_EQ(output[i], i % 2 ? 0xfe00 : 0x7e00);
  }
}

TEST(every_pair_of_float8_codes_is_added_on_every_instruction_set) {
  check_pairs(DType::kFloat8E4M3FN);
  check_pairs(DType::kFloat8E5M2);
}

TEST(any_float32_becomes_float8_on_every_instruction_set) {
  check_encoding(DType::kFloat8E4M3FN);
  check_encoding(DType::kFloat8E5M2);
}

TEST(infinities_and_signed_zeros) {
  CHECK(std::isnan(reduce_two(DType::kFloat32, ReduceOp::kSum, INFINITY, -INFINITY)));
  CHECK_EQ(reduce_two(DType::kFloat32, ReduceOp::kSum, 3e38f, 3e38f), INFINITY);
  CHECK(std::signbit(reduce_two(DType::kFloat32, ReduceOp::kSum, -0.0f, -0.0f)));
  CHECK(!std::signbit(reduce_two(DType::kFloat32, ReduceOp::kSum, -0.0f, 0.0f)));
  for (const float a : {-0.0f, 0.0f}) {
    CHECK(std::signbit(reduce_two(DType::kFloat32, ReduceOp::kMin, a, -a)));
    CHECK(!std::signbit(reduce_two(DType::kFloat32, ReduceOp::kMax, a, -a)));
  }
}

TEST(integers_wrap_around) {
  using Limits32 = std::numeric_limits<std::int32_t>;
  using Limits64 = std::numeric_limits<std::int64_t>;
  CHECK_EQ(reduce_two(DType::kInt32, ReduceOp::kSum, Limits32::max(), 1), Limits32::min());
  CHECK_EQ(reduce_two<std::int64_t>(DType::kInt64, ReduceOp::kSum, Limits64::min(), -1),
           Limits64::max());
  CHECK_EQ(reduce_two<std::int16_t>(DType::kInt16, ReduceOp::kProduct, -32768, -1), -32768);
  CHECK_EQ(reduce_two<std::uint8_t>(DType::kUInt8, ReduceOp::kProduct, 16, 17), 16);
}

TEST(avg_of_integers_truncates_toward_zero) {
  CHECK_EQ(reduce_two(DType::kInt32, ReduceOp::kAvg, -4, -3, 2), -3);
  CHECK_EQ(reduce_two(DType::kInt32, ReduceOp::kAvg, 4, 3, 2), 3);
  for (int dividend = -32768; dividend <= 32767; ++dividend) {
    for (int divisor : {2, 3, 7, 64, 32767, 32768, 32769, 65536}) {
      const auto sum = static_cast<std::int16_t>(dividend);
      CHECK_EQ(reduce_two<std::int16_t>(DType::kInt16, ReduceOp::kAvg, sum, 0, divisor),
               dividend / divisor);
    }
  }
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  for (std::int32_t divisor : {2, 3, 1000003, kMax - 1, kMax}) {
    for (std::int64_t multiple = 1; multiple < 4; ++multiple) {
      for (std::int64_t near = -1; near <= 1; ++near) {
        const std::int64_t sum = std::min<std::int64_t>(multiple * divisor + near, kMax);
        CHECK_EQ(
            reduce_two(DType::kInt32, ReduceOp::kAvg, static_cast<std::int32_t>(sum), 0, divisor),
            sum / divisor);
      }
    }
  }
}

TEST(avg_of_integers_does_not_wrap_around) {
  using Limits64 = std::numeric_limits<std::int64_t>;
  CHECK_EQ(reduce_two<std::uint8_t>(DType::kUInt8, ReduceOp::kAvg, 200, 100, 2), 150);
  CHECK_EQ(reduce_two<std::int8_t>(DType::kInt8, ReduceOp::kAvg, -128, -127, 2), -127);
  CHECK_EQ(reduce_two<std::int16_t>(DType::kInt16, ReduceOp::kAvg, 32767, 32766, 2), 32766);
  CHECK_EQ(reduce_two(DType::kInt32, ReduceOp::kAvg, 2147483647, 2147483645, 2), 2147483646);
  CHECK_EQ(
      reduce_two<std::int64_t>(DType::kInt64, ReduceOp::kAvg, Limits64::max(), Limits64::max(), 2),
      Limits64::max());
  CHECK_EQ(
      reduce_two<std::int64_t>(DType::kInt64, ReduceOp::kAvg, Limits64::min(), Limits64::min(), 2),
      Limits64::min());
}

TEST(avg_and_premul_sum_of_partial_sums_are_sums) {
  CHECK_EQ(reduce_two(DType::kFloat32, ReduceOp::kAvg, 1.0f, 2.0f), 3.0f);
  CHECK_EQ(reduce_two(DType::kFloat32, ReduceOp::kPremulSum, 1.0f, 2.0f), 3.0f);
}

TEST(any_nonzero_byte_is_true) {
  CHECK_EQ(reduce_two<std::uint8_t>(DType::kBool, ReduceOp::kSum, 2, 0), 1);
  CHECK_EQ(reduce_two<std::uint8_t>(DType::kBool, ReduceOp::kProduct, 2, 4), 1);
  CHECK_EQ(reduce_two<std::uint8_t>(DType::kBool, ReduceOp::kBxor, 2, 4), 0);
}

TEST(meaningless_reductions_are_refused) {
  const float input = 1;
  float output = 0;
  const void* inputs[] = {&input, &input};
  const Reduction sum{DType::kFloat32, ReduceOp::kSum};
  CHECK_THROWS(reduce_host(sum, inputs, 0, &output, {}, 1), std::invalid_argument);
  CHECK_THROWS(reduce_host(sum, inputs, kMostInputs, &output, {}, 1), std::invalid_argument);
  CHECK_THROWS(reduce_host(sum, inputs, 2, nullptr, {}, 1), std::invalid_argument);
  reduce_host(sum, inputs, 2, nullptr, {}, 0);
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const Reduction r{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (supports(r.dtype, r.op)) continue;
      CHECK_THROWS(reduce_host(r, inputs, 2, &output, {}, 0), std::invalid_argument);
    }
  }
}

// Around where strands begin, and where they end in pieces of less than the others.
TEST(every_pass_has_the_same_results) {
  std::mt19937_64 random(3);
  for (const DType dtype : {DType::kInt8, DType::kFloat32, DType::kInt64}) {
    const std::size_t width = element_size(dtype);
    for (const std::size_t nbytes :
         {0, 64, (64 << 10) - 8, 64 << 10, (64 << 10) + 8, 100'000, (256 << 10) + 4096, 1 << 20}) {
      const std::size_t count = nbytes / width;
      std::vector<std::byte> a(nbytes), b(nbytes);
      for (std::size_t i = 0; i < nbytes; ++i) {
        a[i] = static_cast<std::byte>(random() % 64);
        b[i] = static_cast<std::byte>(random() % 64);
      }
      const void* inputs[] = {a.data(), b.data()};
      const Reduction sum{dtype, ReduceOp::kSum};
      std::vector<std::byte> expected(nbytes);
      reduce_host(sum, inputs, 2, expected.data(), {}, count);
      for (const Pass pass : {Pass::kStraight, Pass::kInStrands, Pass::kStreaming}) {
        std::vector<std::byte> copied(nbytes), in_place = b;
        copy_host(a.data(), copied.data(), {}, nbytes, pass);
        CHECK(copied == a);
        const void* own[] = {a.data(), in_place.data()};
        reduce_host(sum, own, 2, in_place.data(), {}, count, pass);
        CHECK(in_place == expected);
      }
    }
  }
}

// Blocks of copies end where no vector does.
TEST(results_are_in_every_copy) {
  std::mt19937_64 random(1);
  for (const DType dtype : {DType::kInt8, DType::kInt16, DType::kInt64}) {
    const std::size_t width = element_size(dtype);
    const std::size_t block = (16 << 10) / width;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, block, block + 1, 3 * block}) {
      for (const int num_inputs : {2, 3}) {
        std::vector<std::vector<std::byte>> data;
        std::vector<const void*> inputs;
        for (int k = 0; k < num_inputs; ++k) {
          inputs.push_back(data.emplace_back(random_elements(dtype, count, random)).data());
        }
        const Reduction sum{dtype, ReduceOp::kSum};
        const Buffer alone(count * width, 1), output(count * width, 2);
        reduce_host(sum, inputs.data(), num_inputs, alone.data(), {}, count);
        const Buffer first(count * width, 3), second(count * width, 5);
        StoreChoice stores;
        const Copy copies[] = {{first.data(), &stores}, {second.data()}};
        for (void* const out : {static_cast<void*>(nullptr), static_cast<void*>(output.data()),
                                static_cast<void*>(data.back().data())}) {
          for (const std::size_t num_copies : {1, 2}) {
            const std::vector<std::byte> kept = data.back();
            for (const Buffer* each : {&first, &second, &output}) {
              std::fill_n(each->data(), count * width, std::byte{7});
            }
            reduce_host(sum, inputs.data(), num_inputs, out, std::span(copies).first(num_copies),
                        count);
            for (std::size_t k = 0; k < num_copies; ++k) {
              CHECK(std::equal(alone.data(), alone.data() + count * width,
                               static_cast<std::byte*>(copies[k].to)));
            }
            if (out != nullptr) {
              CHECK(std::equal(alone.data(), alone.data() + count * width,
                               static_cast<std::byte*>(out)));
            }
            std::copy(kept.begin(), kept.end(), data.back().begin());
          }
        }
      }
    }
  }
}

TEST(copies_are_whole_wherever_they_go) {
  std::mt19937_64 random(1);
  for (const std::size_t nbytes : {0, 1, 16383, 16384, 16385, 50000}) {
    const std::vector<std::byte> data = random_elements(DType::kUInt8, nbytes, random);
    const Buffer input(nbytes, 1), output(nbytes, 2), first(nbytes, 3), second(nbytes, 5);
    std::copy(data.begin(), data.end(), input.data());
    StoreChoice stores;
    const Copy copies[] = {{first.data(), &stores}, {second.data()}};
    for (const Buffer* kept : {static_cast<const Buffer*>(nullptr), &input, &output}) {
      for (const std::size_t num_copies : {0, 1, 2}) {
        for (const Buffer* each : {&output, &first, &second}) {
          std::fill_n(each->data(), nbytes, std::byte{7});
        }
        copy_host(input.data(), kept != nullptr ? kept->data() : nullptr,
                  std::span(copies).first(num_copies), nbytes);
        const auto is_copy = [&](const void* at) {
          return std::equal(data.begin(), data.end(), static_cast<const std::byte*>(at));
        };
        if (kept != nullptr) CHECK(is_copy(kept->data()));
        for (std::size_t k = 0; k < num_copies; ++k) CHECK(is_copy(copies[k].to));
      }
    }
  }
}
