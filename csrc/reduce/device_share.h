// One thread's share of a reduction on the device: all that a kernel does.
//
//   for each kPacks of the thread's packs of the body:
//     for each kBatch of the inputs:
//       load the packs of the whole batch
//       combine them in pairs, and the result with those of earlier batches
//     finish, store to each output
//   the thread's elements of head and tail one by one
//
// All loads of a batch come before what waits for one, so that they are in flight at once: with
// batches of 2 and 4, as many bytes as the caller's threads have registers for.
// Every thread reads its part of all inputs before it writes there, so that an output may be one
// of the inputs; that also rules out the read-only data cache.
// Plain C++, so that tests run the same source on the host, a loop over the threads.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "reduce/device_arguments.h"
#include "reduce/device_pack.h"

namespace ringcomm {

// Where a loaded pack has to be on its way: compilers would rather begin with the first input's
// arithmetic between the loads, which waits for it.
RINGCOMM_HOST_DEVICE void loaded_by_here([[maybe_unused]] Pack& pack) {
#ifdef __CUDA_ARCH__
  asm volatile(""
               : "+r"(pack.words[0]), "+r"(pack.words[1]), "+r"(pack.words[2]),
                 "+r"(pack.words[3]));
#endif
}

// Multiplies input k where premul_sum says so, and rounds it to the dtype: a pack's values, or one.
template <ReduceOp op, typename V, int n>
RINGCOMM_HOST_DEVICE void scale(typename V::T (&values)[n], int k, const DeviceArguments& args) {
  using T = typename V::T;
  if constexpr (op == ReduceOp::kSum && std::is_floating_point_v<T>) {
    if (k != args.scaled_input) return;
    RINGCOMM_UNROLL
    for (T& value : values) value = scaled(value, static_cast<T>(args.factor));
    if constexpr (n == V::kCount) {
      V::load(values, V::store(values, args), args);
    } else {
      values[0] = V::load_single(V::store_single(values[0], args), args);
    }
  }
}

// Levels of the sums that wait, of so many values in all.
RINGCOMM_HOST_DEVICE constexpr int levels_of(int num_values) {
  int levels = 1;
  while (1 << levels < num_values) ++levels;
  return levels;
}

// Adds value after value in pairs, as a binary number is counted up: behind k values, the sums that
// wait are of as many values as the digits of k stand for. `number` is the value's, from 0 on; the
// last value becomes the sum of all. What waits is in registers, or else in memory: it is rarely
// needed there.
template <typename V, bool kInRegisters, int kLevels, int n>
RINGCOMM_HOST_DEVICE void add_in_pairs(typename V::T (&waiting)[kLevels][n], int number,
                                       bool is_last, typename V::T (&value)[n],
                                       const DeviceArguments& args) {
  bool waits = false;
  const auto climb = [&](int level) {
    const bool has_pair = (number >> level & 1) != 0;
    waits = !has_pair && !is_last;
    RINGCOMM_UNROLL
    for (int i = 0; i < n; ++i) {
      if (waits) waiting[level][i] = value[i];
      if (has_pair) value[i] = V::combine(waiting[level][i], value[i], args);
    }
  };
  if constexpr (kInRegisters) {
    RINGCOMM_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if (!waits) climb(level);
    }
  } else {
    RINGCOMM_NO_UNROLL
    for (int level = 0; level < kLevels && !waits; ++level) climb(level);
  }
}

// The sum of kSize inputs of a batch from kFirst on, in pairs, of those that exist; the first does.
// `first_input` is the batch's.
template <DType dtype, ReduceOp op, int kFirst, int kSize, int kBatch, int kPacks>
RINGCOMM_HOST_DEVICE void sum_batch(
    const Pack (&loaded)[kBatch][kPacks], int pack, int first_input, const DeviceArguments& args,
    typename Values<dtype, op>::T (&sum)[Values<dtype, op>::kCount]) {
  using V = Values<dtype, op>;
  if constexpr (kSize == 1) {
    V::load(sum, loaded[kFirst][pack], args);
    scale<op, V>(sum, first_input + kFirst, args);
  } else {
    constexpr int kHalf = kSize / 2;
    sum_batch<dtype, op, kFirst, kHalf>(loaded, pack, first_input, args, sum);
    if (first_input + kFirst + kHalf >= args.num_inputs) return;
    typename V::T other[V::kCount];
    sum_batch<dtype, op, kFirst + kHalf, kHalf>(loaded, pack, first_input, args, other);
    RINGCOMM_UNROLL
    for (int i = 0; i < V::kCount; ++i) sum[i] = V::combine(sum[i], other[i], args);
  }
}

// Divides where avg says so.
template <ReduceOp op, typename T, int n>
RINGCOMM_HOST_DEVICE void finish(T (&values)[n], const DeviceArguments& args) {
  if constexpr (op == ReduceOp::kAvg || (op == ReduceOp::kSum && std::is_floating_point_v<T>)) {
    if (args.divisor == 1) return;
    RINGCOMM_UNROLL
    for (T& value : values) {
      if constexpr (std::is_same_v<T, float>) {
        value = args.float_divisor.divide(value);
      } else {
        value = divide(value, args.divisor);
      }
    }
  }
}

// The packs `first`, `first` + packs.stride, ..., of which those before packs.end exist.
template <DType dtype, ReduceOp op, int kBatch, int kPacks>
RINGCOMM_HOST_DEVICE void reduce_packs(const DeviceArguments& args, std::size_t first,
                                       const Stride& packs) {
  using V = Values<dtype, op>;
  using T = typename V::T;
  constexpr bool kTakesAny = kBatch == kLargestBatch;  // batch after batch
  const std::size_t offset = args.partition.head * sizeof(typename V::Storage) + first * kPackBytes;
  bool exists[kPacks];
  RINGCOMM_UNROLL
  for (int u = 0; u < kPacks; ++u) exists[u] = u == 0 || first + u * packs.stride < packs.end;

  T waiting[kPacks][levels_of(kMaxDeviceInputs / kBatch)][V::kCount];
  Pack packed[kPacks];
  int batch = 0;
  do {
    Pack loaded[kBatch][kPacks]{};
    RINGCOMM_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      // On this condition, too: ptxas moves what is loaded anyway into the branch that uses it.
      if (batch + j >= args.num_inputs) break;
      const Pack* in = reinterpret_cast<const Pack*>(args.inputs[batch + j] + offset);
      RINGCOMM_UNROLL
      for (int u = 0; u < kPacks; ++u) loaded[j][u] = exists[u] ? in[u * packs.stride] : Pack{};
    }
    RINGCOMM_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      RINGCOMM_UNROLL
      for (int u = 0; u < kPacks; ++u) loaded_by_here(loaded[j][u]);
    }
    // Pack by pack, so that few values are in registers at once.
    RINGCOMM_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      T sum[V::kCount];
      sum_batch<dtype, op, 0, kBatch>(loaded, u, batch, args, sum);
      if constexpr (kTakesAny) {
        const bool is_last = batch + kBatch >= args.num_inputs;
        add_in_pairs<V, false>(waiting[u], batch / kBatch, is_last, sum, args);
        if (!is_last) continue;
      }
      finish<op>(sum, args);
      packed[u] = V::store(sum, args);
    }
    batch += kBatch;
  } while (kTakesAny && batch < args.num_inputs);
  RINGCOMM_UNROLL
  for (int k = 0; k < kMaxDeviceOutputs; ++k) {
    if (k >= args.num_outputs) break;
    Pack* out = reinterpret_cast<Pack*>(args.outputs[k] + offset);
    RINGCOMM_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      if (exists[u]) out[u * packs.stride] = packed[u];
    }
  }
}

// kAligned: every pointer is a multiple of the element size. Otherwise elements are moved byte by
// byte. This is a template parameter because compilers move bytes in both cases if the choice is
// made any further inside.
template <DType dtype, ReduceOp op, bool kAligned>
RINGCOMM_HOST_DEVICE void reduce_elements(const DeviceArguments& args, const Stride& singles) {
  using V = Values<dtype, op>;
  using Storage = typename V::Storage;
  using T = typename V::T;
  for (std::size_t i = singles.begin; i < singles.end; i += singles.stride) {
    const std::size_t offset = single_element(args.partition, i) * sizeof(Storage);
    T waiting[levels_of(kMaxDeviceInputs)][1], value[1];
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < args.num_inputs; ++k) {
      Storage stored;
      if constexpr (kAligned) {
        stored = *reinterpret_cast<const Storage*>(args.inputs[k] + offset);
      } else {
        std::memcpy(&stored, args.inputs[k] + offset, sizeof(stored));
      }
      value[0] = V::load_single(stored, args);
      scale<op, V>(value, k, args);
      add_in_pairs<V, false>(waiting, k, k + 1 == args.num_inputs, value, args);
    }
    finish<op>(value, args);
    const Storage stored = V::store_single(value[0], args);
    RINGCOMM_UNROLL
    for (int k = 0; k < kMaxDeviceOutputs; ++k) {
      if (k >= args.num_outputs) break;
      if constexpr (kAligned) {
        *reinterpret_cast<Storage*>(args.outputs[k] + offset) = stored;
      } else {
        std::memcpy(args.outputs[k] + offset, &stored, sizeof(stored));
      }
    }
  }
}

// kInFlight: how many packs are to be on their way at once.
template <DType dtype, ReduceOp op, int kBatch, int kInFlight = kPacksInFlight>
RINGCOMM_HOST_DEVICE void reduce_share(const DeviceArguments& args, const Worker& worker) {
  constexpr int kPacks = packs_at_once(kInFlight, kBatch);
  const Stride packs = body_packs(args.partition, worker);
  for (std::size_t i = packs.begin; i < packs.end; i += kPacks * packs.stride) {
    reduce_packs<dtype, op, kBatch, kPacks>(args, i, packs);
  }
  const Stride singles = single_elements(args.partition, worker);
  if (args.element_aligned) {
    reduce_elements<dtype, op, true>(args, singles);
  } else {
    reduce_elements<dtype, op, false>(args, singles);
  }
}

}  // namespace ringcomm
