// What a reduction on the device is tried with, wherever it runs: on a GPU, or on the host, which
// plays the threads of a grid. Expected are the bits of reduce_host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "reduce/host.h"
#include "reference.h"

namespace reduce_cases {

using namespace ringcomm;

using Bytes = std::vector<std::byte>;

enum class Placement {
  kTogether,  // all pointers have the same misalignment
  kApart,     // each has another one
};

enum class Outputs { kOne, kTwo, kInPlace };

struct Case {
  Reduction reduction;
  int num_inputs;
  Outputs outputs;
  std::size_t count;
  std::size_t misalignment;
  Placement placement;

  std::size_t nbytes() const { return count * element_size(reduction.dtype); }

  std::size_t misalignment_of(int buffer) const {
    return placement == Placement::kTogether ? misalignment : misalignment * (buffer + 1) % 19;
  }

  std::string describe() const {
    return std::string(name(reduction.dtype)) + " " + name(reduction.op) + ", " +
           std::to_string(num_inputs) + " inputs, count " + std::to_string(count) +
           ", misaligned by " + std::to_string(misalignment) +
           (placement == Placement::kTogether ? " together" : " apart") + ", outputs " +
           std::to_string(static_cast<int>(outputs));
  }
};

// One for each op of the dtype. It scales or divides by what rounds, where it does.
inline std::vector<Reduction> reductions(DType dtype, int num_inputs) {
  std::vector<Reduction> all;
  for (int o = 0; o < kNumReduceOps; ++o) {
    Reduction r{dtype, static_cast<ReduceOp>(o)};
    if (!supports(r.dtype, r.op)) continue;
    if (r.op == ReduceOp::kAvg) r.divisor = num_inputs + 1;
    if (r.op == ReduceOp::kPremulSum) {
      r.scaled_input = num_inputs - 1;
      r.factor = 1.0 / 3;
    }
    all.push_back(r);
  }
  return all;
}

// Bits that keep a number's sign, mantissa and the two lowest bits of its exponent, and the others
// of 1/4: of numbers that near each other, another order of additions has another sum.
struct NearOne {
  std::uint64_t keep, set;
};

inline NearOne near_one(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return {0x803fffffffffffff, 0x3fc0000000000000};
    case DType::kFloat32:
      return {0x81ffffff, 0x3e000000};
    case DType::kFloat16:
      return {0x8fff, 0x3000};
    case DType::kBFloat16:
      return {0x81ff, 0x3e00};
    default:
      return {~0ull, 0};
  }
}

// Any bits, and in the second half numbers near one, but for zeros of either sign.
inline std::vector<Bytes> random_inputs(const Case& c, std::mt19937& random) {
  std::vector<Bytes> inputs(c.num_inputs, Bytes(c.nbytes()));
  const std::size_t width = element_size(c.reduction.dtype);
  const NearOne near = near_one(c.reduction.dtype);
  for (Bytes& input : inputs) {
    for (std::size_t at = 0; at < input.size(); at += sizeof(std::uint32_t)) {
      const auto word = static_cast<std::uint32_t>(random());
      std::memcpy(&input[at], &word, std::min(sizeof(word), input.size() - at));
    }
    for (std::size_t i = c.count / 2; i < c.count; ++i) {
      std::uint64_t bits =
          (reference::read_bits(input.data() + i * width, width) & near.keep) | near.set;
      if (is_floating_point(c.reduction.dtype) && random() % 4 == 0) {
        bits = reference::from_double(c.reduction.dtype, random() % 2 ? 0.0 : -0.0);
      }
      std::memcpy(input.data() + i * width, &bits, width);
    }
  }
  return inputs;
}

// All pairs of codes of an 8-bit type: every value decoded, every kind of result encoded.
inline std::vector<Bytes> all_pairs() {
  std::vector<Bytes> inputs(2);
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      inputs[0].push_back(static_cast<std::byte>(a));
      inputs[1].push_back(static_cast<std::byte>(b));
    }
  }
  return inputs;
}

// Every 16-bit code.
inline std::vector<Bytes> all_codes() {
  Bytes codes(2 * 65536);
  for (unsigned code = 0; code < 65536; ++code) std::memcpy(&codes[2 * code], &code, 2);
  return {codes};
}

// Runs a reduction on buffers placed as the case says, and gives what the outputs then hold.
using Run = std::function<std::vector<Bytes>(const Case&, const std::vector<Bytes>& inputs)>;

inline void check_case(const Case& c, const std::vector<Bytes>& inputs, const Run& run) {
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes expected(c.nbytes());
  void* output = expected.data();
  reduce_host(c.reduction, pointers.data(), c.num_inputs, output, {}, c.count);
  const std::size_t width = element_size(c.reduction.dtype);
  for (const Bytes& got : run(c, inputs)) {
    if (got == expected) continue;  // as a rule; but NaNs can have other bits
    for (std::size_t i = 0; i < c.count; ++i) {
      CHECK_WITH(
          reference::same(c.reduction.dtype, reference::read_bits(got.data() + i * width, width),
                          reference::read_bits(expected.data() + i * width, width)),
          c.describe() + ", element " + std::to_string(i));
    }
  }
}

inline const std::vector<int> kNumsOfInputs = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 63, 64};

// `count`: elements of the longer cases.
inline void check_dtype(DType dtype, std::size_t count, const Run& run) {
  std::mt19937 random(1);
  const auto check = [&](const Case& c) { check_case(c, random_inputs(c, random), run); };
  const std::size_t width = element_size(dtype);
  for (int num_inputs : kNumsOfInputs) {
    for (const Reduction& r : reductions(dtype, num_inputs)) {
      check({r, num_inputs, Outputs::kOne, count, 0, Placement::kTogether});
      check({r, num_inputs, Outputs::kTwo, count / 3, width, Placement::kTogether});
      check({r, num_inputs, Outputs::kInPlace, count / 2, 0, Placement::kTogether});
      check({r, num_inputs, Outputs::kOne, 31, width, Placement::kApart});
      check({r, num_inputs, Outputs::kTwo, 1, 3, Placement::kApart});
    }
  }
  for (const Reduction& r : reductions(dtype, 3)) {
    for (std::size_t misalignment = 0; misalignment < 16; ++misalignment) {
      for (Outputs outputs : {Outputs::kOne, Outputs::kTwo, Outputs::kInPlace}) {
        check({r, 3, outputs, 203, misalignment, Placement::kTogether});
        check({r, 3, outputs, 67, misalignment, Placement::kApart});
      }
    }
  }
  if (width > 2) return;
  const std::vector<Bytes> inputs = width == 1 ? all_pairs() : all_codes();
  const int num_inputs = static_cast<int>(inputs.size());
  for (Reduction r : reductions(dtype, num_inputs)) {
    check_case({r, num_inputs, Outputs::kOne, 65536, 0, Placement::kTogether}, inputs, run);
  }
}

}  // namespace reduce_cases
