// The host kernels of one instruction set. Each host_*.cpp defines RINGCOMM_ISA (a namespace) and
// RINGCOMM_TARGET (the function attribute that selects the instructions), then includes this file.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "reduce/functors.h"
#include "reduce/host_table.h"

// Outputs either equal an input or do not overlap any: no iteration depends on another.
#if defined(__clang__)
#define RINGCOMM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RINGCOMM_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace ringcomm::RINGCOMM_ISA {
namespace {

// Elements of an accumulator block: it stays in the L1 cache while every input is added to it.
constexpr std::size_t kBlock = 1024;

template <DType dtype>
[[gnu::always_inline]] inline Accumulator<dtype> load_at(const std::byte* data, std::size_t i) {
  Storage<dtype> stored;
  std::memcpy(&stored, data + i * sizeof(stored), sizeof(stored));
  return Element<dtype>::load(stored);
}

template <DType dtype>
[[gnu::always_inline]] inline void store_at(std::byte* data, std::size_t i,
                                            Accumulator<dtype> value) {
  const Storage<dtype> stored = Element<dtype>::store(value);
  std::memcpy(data + i * sizeof(stored), &stored, sizeof(stored));
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void reduce(const Reduction& reduction, const void* const* inputs,
                            int num_inputs, void* const* outputs, int num_outputs,
                            std::size_t count) {
  using T = Accumulator<dtype>;
  const int divisor = reduction.divisor;
  T block[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    const std::size_t offset = begin * sizeof(Storage<dtype>);
    for (int k = 0; k < num_inputs; ++k) {
      const std::byte* in = static_cast<const std::byte*>(inputs[k]) + offset;
      T factor = 1;
      if constexpr (op == ReduceOp::kPremulSum) {
        if (k == reduction.scaled_input) factor = static_cast<T>(reduction.factor);
      }
      if (k == 0) {
        RINGCOMM_INDEPENDENT
        for (std::size_t i = 0; i < n; ++i) block[i] = load_at<dtype>(in, i);
        if constexpr (op == ReduceOp::kPremulSum) {
          for (std::size_t i = 0; i < n; ++i) block[i] *= factor;
        }
      } else if constexpr (op == ReduceOp::kPremulSum) {
        for (std::size_t i = 0; i < n; ++i) {
          block[i] = combine<dtype, op>(block[i], factor * load_at<dtype>(in, i));
        }
      } else {
        for (std::size_t i = 0; i < n; ++i) {
          block[i] = combine<dtype, op>(block[i], load_at<dtype>(in, i));
        }
      }
    }
    if constexpr (op == ReduceOp::kAvg) {
      if (divisor > 1) {
        for (std::size_t i = 0; i < n; ++i) block[i] = divide(block[i], divisor);
      }
    }
    for (int k = 0; k < num_outputs; ++k) {
      std::byte* out = static_cast<std::byte*>(outputs[k]) + offset;
      for (std::size_t i = 0; i < n; ++i) store_at<dtype>(out, i, block[i]);
    }
  }
}

template <DType dtype, ReduceOp op>
constexpr HostKernel kernel() {
  if constexpr (supports(dtype, op)) {
    return reduce<dtype, op>;
  } else {
    return nullptr;
  }
}

template <DType dtype, int... ops>
constexpr auto row(std::integer_sequence<int, ops...>) {
  return std::array<HostKernel, kNumReduceOps>{kernel<dtype, static_cast<ReduceOp>(ops)>()...};
}

template <int... dtypes>
constexpr HostTable table(std::integer_sequence<int, dtypes...>) {
  return {row<static_cast<DType>(dtypes)>(std::make_integer_sequence<int, kNumReduceOps>())...};
}

}  // namespace

extern const HostTable kTable;
constexpr HostTable kTable = table(std::make_integer_sequence<int, kNumDTypes>());

}  // namespace ringcomm::RINGCOMM_ISA
