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
// Where pairs are added first, there is a block for each sum that waits for one of as many inputs.

#pragma once

#include <array>
#include <bit>

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

// What of the inputs is reduced into one block.
template <DType dtype, ReduceOp op>
struct BlockInputs {
  using T = Accumulator<dtype, op>;

  const Reduction& reduction;
  const void* const* inputs;
  int num_inputs;
  std::size_t begin, count;

  RINGCOMM_TARGET void add(int k, bool is_first, T* block) const {
    const T factor = factor_of<op, T>(reduction);
    const std::byte* const in = input_at<dtype>(inputs[k], begin);
    if (op != ReduceOp::kPremulSum || k != reduction.scaled_input) {
      add_block<dtype, op, Scaling::kNone>(block, {in, factor}, is_first, count);
    } else if (num_inputs == 1) {
      add_block<dtype, op, kScaling<op, Scaling::kProduct>>(block, {in, factor}, true, count);
    } else {
      add_block<dtype, op, kScaling<op, Scaling::kRoundedProduct>>(block, {in, factor}, is_first,
                                                                   count);
    }
  }

  bool is_any_scaled(int first, int last) const {
    return op == ReduceOp::kPremulSum && first <= reduction.scaled_input &&
           reduction.scaled_input < last;
  }
  // Four inputs of which none is scaled.
  std::array<KernelInput<dtype, op, Scaling::kNone>, 4> plain(int first) const {
    const auto at = [&](int k) { return input_at<dtype>(inputs[k], begin); };
    return {{{at(first), {}}, {at(first + 1), {}}, {at(first + 2), {}}, {at(first + 3), {}}}};
  }
};

// Sums that wait: at most one for each binary digit of the number of inputs, and one more.
constexpr std::size_t kMostWaiting = std::bit_width(unsigned{kMostInputs - 1}) + 1;
template <typename T>
using WaitingSums = std::array<std::array<T, kBlock>, kMostWaiting>;

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void combine_blocks(Accumulator<dtype, op>* block,
                                    const Accumulator<dtype, op>* added, std::size_t n) {
  RINGCOMM_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) block[i] = combine<dtype, op>(block[i], added[i]);
}

// block = (in[0] op in[1]) op (in[2] op in[3])
template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void load_four(Accumulator<dtype, op>* block,
                               const KernelInput<dtype, op, Scaling::kNone>* in, std::size_t n) {
  const auto [a, b, c, d] = std::to_array({in[0], in[1], in[2], in[3]});
  std::size_t i = 0;
  constexpr std::size_t kWidth = Vector<dtype>::kWidth;
  if constexpr (kWidth > 0) {
    for (; i + kWidth <= n; i += kWidth) {
      float w[kWidth], x[kWidth], y[kWidth], z[kWidth];
      a.vector(w, i);
      b.vector(x, i);
      c.vector(y, i);
      d.vector(z, i);
      RINGCOMM_INDEPENDENT
      for (std::size_t j = 0; j < kWidth; ++j) {
        block[i + j] =
            combine<dtype, op>(combine<dtype, op>(w[j], x[j]), combine<dtype, op>(y[j], z[j]));
      }
    }
  }
  RINGCOMM_INDEPENDENT
  for (; i < n; ++i) {
    block[i] = combine<dtype, op>(combine<dtype, op>(a.value(i), b.value(i)),
                                  combine<dtype, op>(c.value(i), d.value(i)));
  }
}

// Adds pairs first, and leaves the sum in waiting[0]. As a binary number is counted up: behind k
// inputs, the sums that wait are of as many inputs as the digits of k stand for.
template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void add_pairs(const BlockInputs<dtype, op>& in,
                               WaitingSums<Accumulator<dtype, op>>& waiting) {
  std::size_t num_waiting = 0;
  const auto add = [&](int k, bool is_first) { in.add(k, is_first, waiting[num_waiting].data()); };
  const auto join_last_two = [&] {
    --num_waiting;
    combine_blocks<dtype, op>(waiting[num_waiting - 1].data(), waiting[num_waiting].data(),
                              in.count);
  };
  int k = 0;
  for (; k + 4 <= in.num_inputs; k += 4) {
    if (in.is_any_scaled(k, k + 4)) {
      for (int pair = k; pair < k + 4; pair += 2, ++num_waiting) {
        add(pair, true);
        add(pair + 1, false);
      }
      join_last_two();
    } else {
      const auto four = in.plain(k);
      load_four<dtype, op>(waiting[num_waiting++].data(), four.data(), in.count);
    }
    for (int fours = k / 4 + 1; fours % 2 == 0; fours /= 2) join_last_two();
  }
  for (; k < in.num_inputs; k += 2, ++num_waiting) {
    add(k, true);
    if (k + 1 < in.num_inputs) add(k + 1, false);
  }
  while (num_waiting > 1) join_last_two();
}

template <DType dtype, ReduceOp op, bool adds_pairs>
RINGCOMM_TARGET void reduce_blocks(const Reduction& reduction, const void* const* inputs,
                                   int num_inputs, std::size_t begin, void* output,
                                   std::size_t count) {
  using T = Accumulator<dtype, op>;
  alignas(64) std::array<std::array<T, kBlock>, adds_pairs ? kMostWaiting : 1> blocks;
  T* const block = blocks[0].data();
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t n = std::min(kBlock, count - done);
    const BlockInputs<dtype, op> in{reduction, inputs, num_inputs, begin + done, n};
    if constexpr (adds_pairs) {
      add_pairs(in, blocks);
    } else {
      for (int k = 0; k < num_inputs; ++k) in.add(k, k == 0, block);
    }
    if constexpr (op == ReduceOp::kAvg) finish_block<op>(block, n, reduction.divisor);
    std::byte* const out = static_cast<std::byte*>(output) + done * sizeof(Storage<dtype>);
    store_block<dtype, op>(out, block, n);
  }
}

template <DType dtype, ReduceOp op>
RINGCOMM_TARGET void reduce(const Reduction& reduction, const void* const* inputs, int num_inputs,
                            std::size_t begin, void* output, std::size_t count) {
  if constexpr (depends_on_association(dtype, op)) {
    if (num_inputs > 3) {
      return reduce_blocks<dtype, op, true>(reduction, inputs, num_inputs, begin, output, count);
    }
  }
  if (num_inputs != 2) {
    return reduce_blocks<dtype, op, false>(reduction, inputs, num_inputs, begin, output, count);
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
