// Ranks that compute one value in different ways have the same bits: whichever of them scales its
// own input, in whichever order two inputs are added, and whatever floating-point mode a thread
// has. Every dtype, op and instruction set.
#include <array>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "reduce/device_arguments.h"
#include "reduce/float_mode.h"
#include "reduce/host.h"
#include "reference.h"

namespace {

using namespace ringcomm;

using Bytes = std::vector<std::byte>;

// Not a multiple of any vector's width, and more than one block of accumulators.
constexpr std::size_t kCount = 1061;

std::vector<Reduction> all_reductions() {
  std::vector<Reduction> all;
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const Reduction r{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (supports(r.dtype, r.op)) all.push_back(r);
    }
  }
  return all;
}

std::string describe(const Reduction& r, const std::string& how) {
  return std::string(name(r.dtype)) + " " + name(r.op) + ", " + how;
}

// Numbers at which rounding, signs and ranges show.
std::vector<double> special_numbers(DType dtype) {
  if (!is_floating_point(dtype)) return {0, 1, 2, 3, 127};
  std::vector<double> numbers{0, 1, 1.125, 3, INFINITY, NAN};
  if (dtype == DType::kFloat64) {
    using Limits = std::numeric_limits<double>;
    numbers.insert(numbers.end(), {Limits::denorm_min(), Limits::min(), Limits::max()});
  } else if (dtype == DType::kFloat32) {
    using Limits = std::numeric_limits<float>;
    numbers.insert(numbers.end(), {Limits::denorm_min(), Limits::min(), Limits::max()});
  } else {
    const reference::FloatTable& table = reference::float_table(dtype);
    for (const unsigned code : {1u, 2u, 3u, 5u, 9u}) numbers.push_back(table.decode(code));
  }
  for (const double number : std::vector(numbers)) numbers.push_back(-number);
  return numbers;
}

// Two inputs with every pair of special numbers, and then any bits.
std::array<Bytes, 2> make_inputs(DType dtype) {
  const std::size_t width = element_size(dtype);
  std::array<Bytes, 2> inputs;
  const auto append = [&](int k, std::uint64_t bits) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&bits);
    inputs[k].insert(inputs[k].end(), bytes, bytes + width);
  };
  const auto bits_of_number = [&](double number) {
    return is_floating_point(dtype) ? reference::from_double(dtype, number)
                                    : static_cast<std::uint64_t>(number);
  };
  const std::vector<double> numbers = special_numbers(dtype);
  for (const double a : numbers) {
    for (const double b : numbers) {
      append(0, bits_of_number(a));
      append(1, bits_of_number(b));
    }
  }
  std::mt19937_64 random(static_cast<unsigned>(dtype));
  while (inputs[0].size() < kCount * width) {
    for (int k = 0; k < 2; ++k) append(k, random());
  }
  return inputs;
}

using Inputs = std::vector<const Bytes*>;

std::vector<const void*> pointers(const Inputs& inputs) {
  std::vector<const void*> found;
  for (const Bytes* input : inputs) found.push_back(input->data());
  return found;
}

Bytes reduced(const HostIsa& isa, const Reduction& r, const Inputs& inputs) {
  Bytes output(inputs[0]->size());
  const ReduceOp op = effective_op(r);
  const HostKernel kernel = (*isa.table)[static_cast<int>(r.dtype)][static_cast<int>(op)];
  kernel(r, pointers(inputs).data(), static_cast<int>(inputs.size()), 0, output.data(),
         output.size() / element_size(r.dtype));
  return output;
}

void check_same(const Reduction& r, const Bytes& got, const Bytes& expected,
                const std::string& how) {
  const std::size_t width = element_size(r.dtype);
  CHECK_EQ(got.size(), expected.size());
  for (std::size_t at = 0; at < got.size(); at += width) {
    CHECK_WITH(reference::same(r.dtype, reference::read_bits(got.data() + at, width),
                               reference::read_bits(expected.data() + at, width)),
               describe(r, how) + ", element " + std::to_string(at / width));
  }
}

// Factors whose products are rounded up and down, overflow and underflow.
const std::vector<double> kFactors = {1.0 / 3, 1.1, -0.7, 0x1p-9, 0x1p20};

// A thread's mode while it lives; the flags of exceptions begin as `flags`.
class ThreadMode {
 public:
  using Bits = FloatModeRegister::Bits;
  explicit ThreadMode(Bits bits) : saved_(FloatModeRegister::read()) {
    FloatModeRegister::write(bits);
  }
  ~ThreadMode() { FloatModeRegister::write(saved_); }

 private:
  const Bits saved_;
};

struct NamedMode {
  std::string name;
  FloatModeRegister::Bits bits;
};

std::vector<NamedMode> modes() {
  std::vector<NamedMode> all;
  for (const auto& [name, rounding] : {std::pair{"upward", FE_UPWARD},
                                       {"downward", FE_DOWNWARD},
                                       {"toward zero", FE_TOWARDZERO}}) {
    std::fesetround(rounding);
    all.push_back({name, FloatModeRegister::read()});
  }
  std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
  constexpr unsigned kFlush = 0x8000, kSubnormalsAreZeros = 0x0040;
  const unsigned usual = FloatModeRegister::kDefault;
  all.push_back({"subnormals flushed", usual | kFlush | kSubnormalsAreZeros});
  all.push_back({"subnormals flushed, upward", all[0].bits | kFlush | kSubnormalsAreZeros});
  all.push_back({"exceptions trap", usual & ~0x1f80u});
#elif defined(__aarch64__)
  constexpr std::uint64_t kFlush = 1 << 24 | 1 << 19;
  all.push_back({"subnormals flushed", kFlush});
  all.push_back({"subnormals flushed, upward", all[0].bits | kFlush});
#else
  all.clear();
#endif
  return all;
}

}  // namespace

// As peers receive it: a pass of its own, whose output they add.
TEST(a_contribution_is_what_the_peers_receive) {
  for (Reduction r : all_reductions()) {
    const auto [own, other] = make_inputs(r.dtype);
    for (const double factor : r.op == ReduceOp::kPremulSum ? kFactors : std::vector{1.0}) {
      r.factor = factor;
      for (const HostIsa& isa : supported_host_isas()) {
        Reduction contributes = r;
        contributes.scaled_input = r.op == ReduceOp::kPremulSum ? 0 : -1;
        const Bytes sent = reduced(isa, contributes, {&own});
        for (int place = 0; place < 3; ++place) {
          for (int num_others = std::max(place, 1); num_others < 3; ++num_others) {
            Inputs scales(num_others, &other), receives(num_others, &other);
            scales.insert(scales.begin() + place, &own);
            receives.insert(receives.begin() + place, &sent);
            Reduction with_own = contributes;
            if (r.op == ReduceOp::kPremulSum) with_own.scaled_input = place;
            check_same(r, reduced(isa, with_own, scales), reduced(isa, r, receives),
                       isa.name + (", own input " + std::to_string(place)) + " of " +
                           std::to_string(num_others + 1) + ", factor " + std::to_string(factor));
          }
        }
      }
    }
  }
}

// Two ranks that add the same two sums may have them in opposite order.
TEST(two_inputs_give_the_same_bits_in_either_order) {
  for (Reduction r : all_reductions()) {
    const auto [a, b] = make_inputs(r.dtype);
    if (r.op == ReduceOp::kAvg) r.divisor = 3;
    for (const HostIsa& isa : supported_host_isas()) {
      check_same(r, reduced(isa, r, {&a, &b}), reduced(isa, r, {&b, &a}), isa.name);
    }
  }
}

TEST(a_threads_floating_point_mode_changes_no_bit_and_stays) {
  for (Reduction r : all_reductions()) {
    const auto [a, b] = make_inputs(r.dtype);
    if (r.op == ReduceOp::kAvg) r.divisor = 3;
    if (r.op == ReduceOp::kPremulSum) r = {r.dtype, r.op, 1, 1, 1.0 / 3};
    for (const int num_inputs : {2, 3}) {
      const std::vector<const void*> inputs =
          pointers(num_inputs == 2 ? Inputs{&a, &b} : Inputs{&a, &b, &a});
      Bytes expected(a.size()), got(a.size());
      const std::size_t count = a.size() / element_size(r.dtype);
      reduce_host(r, inputs.data(), num_inputs, expected.data(), {}, count);
      for (const NamedMode& mode : modes()) {
        FloatModeRegister::Bits after = 0;
        {
          const ThreadMode of_thread(mode.bits);
          reduce_host(r, inputs.data(), num_inputs, got.data(), {}, count);
          after = FloatModeRegister::read();
        }
        check_same(r, got, expected, mode.name);
        CHECK_WITH(after == mode.bits, describe(r, mode.name));
      }
    }
  }
}

TEST(a_threads_floating_point_mode_changes_no_argument_of_a_kernel) {
  for (const int divisor : {1, 3, 7, 10, 1000, 16777217}) {
    const Reduction r{DType::kFloat32, ReduceOp::kAvg, divisor};
    const UniformDivisor expected = reduction_arguments_of(r).float_divisor;
    for (const NamedMode& mode : modes()) {
      UniformDivisor got{};
      {
        const ThreadMode of_thread(mode.bits);
        got = reduction_arguments_of(r).float_divisor;
      }
      CHECK_WITH(std::memcmp(&got, &expected, sizeof(got)) == 0,
                 mode.name + ", divisor " + std::to_string(divisor));
    }
  }
}

#if defined(__x86_64__)
// Writing the register costs more than reading it.
TEST(flags_of_exceptions_are_no_mode) {
  constexpr unsigned kDivisionByZero = 0x04, kInexact = 0x20;
  const float a = 1, b = 0x1p-30f;
  const void* inputs[] = {&a, &b};
  float sum = 0;
  const ThreadMode of_thread(FloatModeRegister::kDefault | kDivisionByZero);
  reduce_host({DType::kFloat32, ReduceOp::kSum}, inputs, 2, &sum, {}, 1);
  CHECK_EQ(FloatModeRegister::read(),
           FloatModeRegister::kDefault | kDivisionByZero | kInexact);  // not written back
}
#endif
