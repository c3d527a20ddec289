// The host kernels, compiled once per instruction set: each host_ISA.cpp includes
// reduce/host_vectors.h, and then this file. Loops are plain and vectorised by the compiler.
//
// Two inputs are reduced in one loop from memory to memory. Any other number goes through a block
// of accumulators that stays in the L1 cache:
//
//   for each block of the data:
//     block = in[0];  block = block op in[k] for k = 1..n-1;  out = round(finish(block))
//
// so every input is read once, the output written once, and each result rounded once. The output
// may be one of the inputs, because a block is stored only after all inputs have been read there.

#pragma once

#include "reduce/host.h"
#include "reduce/host_vectors.h"

namespace ringcomm::RINGCOMM_ISA {
namespace {

// Elements of the accumulator block: 4 KiB, or 8 for averages of int64, which leaves most of L1 to
// the inputs.
constexpr std::size_t kBlock = 512;

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

// What premul_sum does to an input: nothing, or it multiplies it. The product is rounded at once,
// or by the store where nothing is added to it.
enum class Scaling { kNone, kProduct, kRoundedProduct };
template <ReduceOp op, Scaling scaling>
constexpr Scaling kScaling = op == ReduceOp::kPremulSum ? scaling : Scaling::kNone;

template <DType dtype, ReduceOp op, Scaling scaling>
struct KernelInput {
  using T = Accumulator<dtype, op>;

  const std::byte* data;
  T factor;

  [[gnu::always_inline]] T value(std::size_t i) const {
    const T loaded = load_at<dtype, op>(data, i);
    if constexpr (scaling == Scaling::kRoundedProduct)
      return rounded<dtype>(scaled(loaded, factor));
    if constexpr (scaling == Scaling::kProduct) return scaled(loaded, factor);
    return loaded;
  }

  // Those from i on, as many as a vector holds. To round bfloat16, nothing has to be narrowed.
  [[gnu::always_inline]] RINGCOMM_TARGET void vector(float* values, std::size_t i) const {
    constexpr std::size_t kWidth = Vector<dtype>::kWidth;
    Vector<dtype>::load(values, data + sizeof(Storage<dtype>) * i);
    if constexpr (scaling != Scaling::kNone) {
      constexpr bool kRounds = scaling == Scaling::kRoundedProduct;
      constexpr bool kStaysWide = dtype == DType::kBFloat16;
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) {
        values[j] = scaled(values[j], factor);
        if constexpr (kRounds && kStaysWide) values[j] = rounded<dtype>(values[j]);
      }
      if constexpr (kRounds && !kStaysWide) {
        std::byte sent[kWidth * sizeof(Storage<dtype>)];
        Vector<dtype>::store(sent, values);
        Vector<dtype>::load(values, sent);
      }
    }
  }
};

// Conversions to integers are for nothing, and not defined for every factor.
template <ReduceOp op, typename T>
[[gnu::always_inline]] inline T factor_of(const Reduction& reduction) {
  if constexpr (op == ReduceOp::kPremulSum) return static_cast<T>(reduction.factor);
  return T{};
}

template <DType dtype, ReduceOp op>
[[gnu::always_inline]] inline void store_at(std::byte* data, std::size_t i,
                                            Accumulator<dtype, op> value) {
  const Storage<dtype> stored = Element<dtype>::store(static_cast<Accumulator<dtype>>(value));
  std::memcpy(data + i * sizeof(stored), &stored, sizeof(stored));
}

// out[i] = finish(a[i] op b[i]). premul_sum scales `a`.
template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void reduce_pair(const Reduction& reduction, const void* first, const void* second,
                                 std::size_t begin, void* output, std::size_t count) {
  using T = Accumulator<dtype, op>;
  const KernelInput<dtype, op, kScaling<op, Scaling::kRoundedProduct>> a{
      input_at<dtype>(first, begin), factor_of<op, T>(reduction)};
  const KernelInput<dtype, op, Scaling::kNone> b{input_at<dtype>(second, begin), T{}};
  const int divisor = reduction.divisor;
  std::byte* out = static_cast<std::byte*>(output);
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= count; i += kWidth) {
      float x[kWidth], y[kWidth];
      a.vector(x, i);
      b.vector(y, i);
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) {
        x[j] = finish<op>(combine<dtype, op>(x[j], y[j]), divisor);
      }
      Vector<dtype>::store(out + sizeof(Storage<dtype>) * i, x);
    }
  }
  RINGCOMM_INDEPENDENT
  for (; i < count; ++i) {
    const T value = combine<dtype, op>(a.value(i), b.value(i));
    store_at<dtype, op>(out, i, finish<op>(value, divisor));
  }
}

template <DType dtype, ReduceOp op, Scaling scaling>
RINGCOMM_TARGET void load_block(Accumulator<dtype, op>* block, KernelInput<dtype, op, scaling> in,
                                std::size_t n) {
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= n; i += kWidth) in.vector(block + i, i);
  }
  RINGCOMM_INDEPENDENT
  for (; i < n; ++i) block[i] = in.value(i);
}

template <DType dtype, ReduceOp op, Scaling scaling>
RINGCOMM_TARGET void combine_block(Accumulator<dtype, op>* block,
                                   KernelInput<dtype, op, scaling> in, std::size_t n) {
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= n; i += kWidth) {
      float x[kWidth];
      in.vector(x, i);
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) {
        block[i + j] = combine<dtype, op>(block[i + j], x[j]);
      }
    }
  }
  RINGCOMM_INDEPENDENT
  for (; i < n; ++i) block[i] = combine<dtype, op>(block[i], in.value(i));
}

template <DType dtype, ReduceOp op, Scaling scaling>
RINGCOMM_TARGET void add_block(Accumulator<dtype, op>* block, KernelInput<dtype, op, scaling> in,
                               bool is_first, std::size_t n) {
  if (is_first) {
    load_block<dtype, op, scaling>(block, in, n);
  } else {
    combine_block<dtype, op, scaling>(block, in, n);
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
  const T factor = factor_of<op, T>(reduction);
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t n = std::min(kBlock, count - done);
    for (int k = 0; k < num_inputs; ++k) {
      const std::byte* const in = input_at<dtype>(inputs[k], begin + done);
      if (op != ReduceOp::kPremulSum || k != reduction.scaled_input) {
        add_block<dtype, op, Scaling::kNone>(block, {in, factor}, k == 0, n);
      } else if (num_inputs == 1) {
        add_block<dtype, op, kScaling<op, Scaling::kProduct>>(block, {in, factor}, true, n);
      } else {
        add_block<dtype, op, kScaling<op, Scaling::kRoundedProduct>>(block, {in, factor}, k == 0,
                                                                     n);
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
  if (num_inputs != 2) {
    return reduce_blocks<dtype, op>(reduction, inputs, num_inputs, begin, output, count);
  }
  const int first = op == ReduceOp::kPremulSum && reduction.scaled_input == 1 ? 1 : 0;
  reduce_pair<dtype, op>(reduction, inputs[first], inputs[1 - first], begin, output, count);
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
