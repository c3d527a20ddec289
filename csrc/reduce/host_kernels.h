// The host kernels, compiled once per instruction set. Each host_ISA.cpp defines
//   RINGCOMM_ISA     the namespace,
//   RINGCOMM_TARGET  the function attribute that selects the instructions,
//   RINGCOMM_BFLOAT16, RINGCOMM_FLOAT16, RINGCOMM_FLOAT8
//                    headers that define BFloat16Vector, Float16Vector and Float8Vector<Format>, if
//                    instructions convert these types faster than what the compiler makes of
//                    reduce/host_bfloat16.h and Element's code,
// then includes this file. Loops are plain and vectorised by the compiler.
//
// Two inputs are reduced in one loop from memory to memory. Any other number goes through a block
// of accumulators that stays in the L1 cache:
//
//   for each block of the data:
//     block = in[0];  block = block op in[k] for k = 1..n-1;  out = round(finish(block))
//
// so every input is read once, the output written once, and each result rounded once. The output
// may be one of the inputs, because a block is stored only after all inputs have been read there.

#include <algorithm>
#include <array>
#include <cstddef>
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
#include "reduce/host_table.h"

// The output is one of the inputs or overlaps none: no iteration depends on another.
#if defined(__clang__)
#define RINGCOMM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RINGCOMM_INDEPENDENT _Pragma("GCC ivdep")
#endif

// Of a vector's functions, which are members.
#define RINGCOMM_INLINE [[gnu::always_inline]] RINGCOMM_TARGET static inline

#ifndef RINGCOMM_BFLOAT16
#define RINGCOMM_BFLOAT16 "reduce/host_bfloat16.h"
#endif
#include RINGCOMM_BFLOAT16
#ifdef RINGCOMM_FLOAT16
#include RINGCOMM_FLOAT16
#endif
#ifdef RINGCOMM_FLOAT8
#include RINGCOMM_FLOAT8
#endif

namespace ringcomm::RINGCOMM_ISA {
namespace {

// Elements of the accumulator block: 4 KiB, or 8 for averages of int64, which leaves most of L1 to
// the inputs.
constexpr std::size_t kBlock = 512;

// Between kWidth elements in memory and as many floats: load(float*, const std::byte*) and
// store(std::byte*, const float*). 0: element by element.
template <DType dtype>
struct Vector {
  static constexpr std::size_t kWidth = 0;
};
template <>
struct Vector<DType::kBFloat16> : BFloat16Vector {};
#ifdef RINGCOMM_FLOAT16
template <>
struct Vector<DType::kFloat16> : Float16Vector {};
#endif
#ifdef RINGCOMM_FLOAT8
template <>
struct Vector<DType::kFloat8E4M3FN> : Float8Vector<Float8E4M3FN> {};
template <>
struct Vector<DType::kFloat8E5M2> : Float8Vector<Float8E5M2> {};
#endif

template <DType dtype>
[[gnu::always_inline]] inline const std::byte* input_at(const void* input, std::size_t begin) {
  return static_cast<const std::byte*>(input) + begin * sizeof(Storage<dtype>);
}

template <DType dtype, ReduceOp op>
[[gnu::always_inline]] inline Accumulator<dtype, op> load_at(const std::byte* data, std::size_t i) {
  Storage<dtype> stored;
  std::memcpy(&stored, data + i * sizeof(stored), sizeof(stored));
  return Element<dtype>::load(stored);
}

// What premul_sum multiplies input k by: multiplying by 1 is exact.
template <typename T>
[[gnu::always_inline]] inline T input_factor(const Reduction& reduction, int k) {
  return k == reduction.scaled_input ? static_cast<T>(reduction.factor) : T(1);
}

template <DType dtype, ReduceOp op>
[[gnu::always_inline]] inline void store_at(std::byte* data, std::size_t i,
                                            Accumulator<dtype, op> value) {
  const Storage<dtype> stored = Element<dtype>::store(static_cast<Accumulator<dtype>>(value));
  std::memcpy(data + i * sizeof(stored), &stored, sizeof(stored));
}

// out[i] = finish(a[i] op b[i])
template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void reduce_pair(const Reduction& reduction, const void* const* inputs,
                                 std::size_t begin, void* output, std::size_t count) {
  using T = Accumulator<dtype, op>;
  const std::byte* a = input_at<dtype>(inputs[0], begin);
  const std::byte* b = input_at<dtype>(inputs[1], begin);
  const T a_factor = input_factor<T>(reduction, 0);
  const T b_factor = input_factor<T>(reduction, 1);
  const int divisor = reduction.divisor;
  std::byte* out = static_cast<std::byte*>(output);
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= count; i += kWidth) {
      float x[kWidth], y[kWidth];
      Vector<dtype>::load(x, a + sizeof(Storage<dtype>) * i);
      Vector<dtype>::load(y, b + sizeof(Storage<dtype>) * i);
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) {
        x[j] = finish<op>(
            combine<dtype, op>(scaled<op>(x[j], a_factor), scaled<op>(y[j], b_factor)), divisor);
      }
      Vector<dtype>::store(out + sizeof(Storage<dtype>) * i, x);
    }
  }
  RINGCOMM_INDEPENDENT
  for (; i < count; ++i) {
    const T value = combine<dtype, op>(scaled<op>(load_at<dtype, op>(a, i), a_factor),
                                       scaled<op>(load_at<dtype, op>(b, i), b_factor));
    store_at<dtype, op>(out, i, finish<op>(value, divisor));
  }
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void load_block(Accumulator<dtype, op>* block, const std::byte* in, std::size_t n,
                                Accumulator<dtype, op> factor) {
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= n; i += kWidth) {
      float x[kWidth];
      Vector<dtype>::load(x, in + sizeof(Storage<dtype>) * i);
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) block[i + j] = scaled<op>(x[j], factor);
    }
  }
  RINGCOMM_INDEPENDENT
  for (; i < n; ++i) block[i] = scaled<op>(load_at<dtype, op>(in, i), factor);
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void combine_block(Accumulator<dtype, op>* block, const std::byte* in,
                                   std::size_t n, Accumulator<dtype, op> factor) {
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= n; i += kWidth) {
      float x[kWidth];
      Vector<dtype>::load(x, in + sizeof(Storage<dtype>) * i);
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) {
        block[i + j] = combine<dtype, op>(block[i + j], scaled<op>(x[j], factor));
      }
    }
  }
  RINGCOMM_INDEPENDENT
  for (; i < n; ++i) {
    block[i] = combine<dtype, op>(block[i], scaled<op>(load_at<dtype, op>(in, i), factor));
  }
}

template <ReduceOp op, typename T>
RINGCOMM_TARGET void finish_block(T* block, std::size_t n, int divisor) {
  RINGCOMM_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) block[i] = finish<op>(block[i], divisor);
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void store_block(std::byte* out, const Accumulator<dtype, op>* block,
                                 std::size_t n) {
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= n; i += kWidth)
      Vector<dtype>::store(out + sizeof(Storage<dtype>) * i, block + i);
  }
  RINGCOMM_INDEPENDENT
  for (; i < n; ++i) store_at<dtype, op>(out, i, block[i]);
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void reduce_blocks(const Reduction& reduction, const void* const* inputs,
                                   int num_inputs, std::size_t begin, void* output,
                                   std::size_t count) {
  using T = Accumulator<dtype, op>;
  alignas(64) T block[kBlock];
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t n = std::min(kBlock, count - done);
    for (int k = 0; k < num_inputs; ++k) {
      const std::byte* in = input_at<dtype>(inputs[k], begin + done);
      const T factor = input_factor<T>(reduction, k);
      if (k == 0) {
        load_block<dtype, op>(block, in, n, factor);
      } else {
        combine_block<dtype, op>(block, in, n, factor);
      }
    }
    if constexpr (op == ReduceOp::kAvg) finish_block<op>(block, n, reduction.divisor);
    std::byte* const out = static_cast<std::byte*>(output) + done * sizeof(Storage<dtype>);
    store_block<dtype, op>(out, block, n);
  }
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void reduce(const Reduction& reduction, const void* const* inputs, int num_inputs,
                            std::size_t begin, void* output, std::size_t count) {
  if (num_inputs == 2) {
    reduce_pair<dtype, op>(reduction, inputs, begin, output, count);
  } else {
    reduce_blocks<dtype, op>(reduction, inputs, num_inputs, begin, output, count);
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

constexpr HostTable kTable = table(std::make_integer_sequence<int, kNumDTypes>());

}  // namespace ringcomm::RINGCOMM_ISA
