// One thread's share of a reduction on the device: all that a kernel does.
//
//   for each kPacks of the thread's packs of the body:
//     for each kBatch of the inputs:
//       load the packs of the whole batch
//       combine them, from the first input to the last
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

  T results[kPacks][V::kCount];
  Pack packed[kPacks];
  const auto pack = [&](int u) {
    finish<op>(results[u], args);
    packed[u] = V::store(results[u], args);
  };
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
    // Pack by pack, so that no more than one is in registers as values.
    RINGCOMM_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      RINGCOMM_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        if (batch + j >= args.num_inputs) break;
        T values[V::kCount];
        V::load(values, loaded[j][u], args);
        scale<op, V>(values, batch + j, args);
        RINGCOMM_UNROLL
        for (int i = 0; i < V::kCount; ++i) {
          const bool is_first = j == 0 && batch == 0;
          results[u][i] = is_first ? values[i] : V::combine(results[u][i], values[i], args);
        }
      }
      if (!kTakesAny) pack(u);
    }
    batch += kBatch;
  } while (kTakesAny && batch < args.num_inputs);
  RINGCOMM_UNROLL
  for (int u = 0; kTakesAny && u < kPacks; ++u) pack(u);
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
    T result[1];
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < args.num_inputs; ++k) {
      Storage stored;
      if constexpr (kAligned) {
        stored = *reinterpret_cast<const Storage*>(args.inputs[k] + offset);
      } else {
        std::memcpy(&stored, args.inputs[k] + offset, sizeof(stored));
      }
      T value[] = {V::load_single(stored, args)};
      scale<op, V>(value, k, args);
      result[0] = k == 0 ? value[0] : V::combine(result[0], value[0], args);
    }
    finish<op>(result, args);
    const Storage stored = V::store_single(result[0], args);
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
