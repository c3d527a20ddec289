// The device kernels of one dtype. Each device_TYPES.cu includes this file and instantiates
// device_row for its dtypes.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "reduce/device_table.h"
#include "reduce/functors.h"

namespace ringcomm {

template <DType dtype>
struct alignas(kPackBytes) Pack {
  static constexpr int kCount = static_cast<int>(kPackBytes / sizeof(Storage<dtype>));
  Storage<dtype> values[kCount];
};

// Up to 64 bytes of every input in flight per thread; fewer where a pack widens into more
// registers than it takes in memory.
template <DType dtype>
constexpr int kUnroll = std::min<int>(4, sizeof(Storage<dtype>));

// How many blocks of a multiprocessor must be able to be resident; 0 leaves it to ptxas. Dividing
// takes registers, and is held to what lets all be. Of uint8's min and max ptxas would spill one.
template <ReduceOp op>
constexpr int kMinBlocks = op == ReduceOp::kAvg                           ? kBlocksPerMultiprocessor
                           : op == ReduceOp::kMin || op == ReduceOp::kMax ? 3
                                                                          : 0;

template <typename T>
__device__ __forceinline__ T load_single(const std::byte* data, bool aligned) {
  if (aligned) return *reinterpret_cast<const T*>(data);
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

template <typename T>
__device__ __forceinline__ void store_single(std::byte* data, T value, bool aligned) {
  if (aligned) {
    *reinterpret_cast<T*>(data) = value;
  } else {
    std::memcpy(data, &value, sizeof(T));
  }
}

template <typename T>
__device__ __forceinline__ T input_factor(const DeviceArguments& args, int k) {
  return k == args.scaled_input ? static_cast<T>(args.factor) : T(1);
}

// finish, by way of the divisor prepared for float32, and the store.
template <DType dtype, ReduceOp op>
__device__ __forceinline__ Storage<dtype> finish_element(const DeviceArguments& args,
                                                         Accumulator<dtype> sum) {
  if constexpr (op == ReduceOp::kAvg && std::is_same_v<Accumulator<dtype>, float>) {
    return Element<dtype>::store(args.float_divisor.divide(sum));
  } else {
    return Element<dtype>::store(finish<op>(sum, args.divisor));
  }
}

// Reduces kPacks packs of each input, `stride` packs apart. kInputs: the number of inputs where
// it is known at compile time, else 0.
template <DType dtype, ReduceOp op, int kInputs, int kPacks>
__device__ __forceinline__ void reduce_packs(const DeviceArguments& args, std::size_t first,
                                             std::size_t stride) {
  using T = Accumulator<dtype>;
  using P = Pack<dtype>;
  const std::size_t offset = args.partition.head * sizeof(Storage<dtype>) + first * kPackBytes;
  const int num_inputs = kInputs > 0 ? kInputs : args.num_inputs;
  T sums[kPacks][P::kCount];
  P packs[kPacks];
#pragma unroll(kInputs > 0 ? kInputs : 1)
  for (int k = 0; k < num_inputs; ++k) {
    const P* in = reinterpret_cast<const P*>(args.inputs[k] + offset);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) packs[u] = in[u * stride];
    const T factor = input_factor<T>(args, k);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int i = 0; i < P::kCount; ++i) {
        const T value = scaled<op>(Element<dtype>::load(packs[u].values[i]), factor);
        sums[u][i] = k == 0 ? value : combine<dtype, op>(sums[u][i], value);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
#pragma unroll
    for (int i = 0; i < P::kCount; ++i) {
      packs[u].values[i] = finish_element<dtype, op>(args, sums[u][i]);
    }
  }
  for (int k = 0; k < args.num_outputs; ++k) {
    P* out = reinterpret_cast<P*>(args.outputs[k] + offset);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) out[u * stride] = packs[u];
  }
}

template <DType dtype, ReduceOp op>
__device__ __forceinline__ void reduce_element(const DeviceArguments& args, std::size_t index) {
  using T = Accumulator<dtype>;
  using S = Storage<dtype>;
  const std::size_t offset = index * sizeof(S);
  T sum{};
  for (int k = 0; k < args.num_inputs; ++k) {
    const S stored = load_single<S>(args.inputs[k] + offset, args.element_aligned);
    const T value = scaled<op>(Element<dtype>::load(stored), input_factor<T>(args, k));
    sum = k == 0 ? value : combine<dtype, op>(sum, value);
  }
  const S result = finish_element<dtype, op>(args, sum);
  for (int k = 0; k < args.num_outputs; ++k) {
    store_single(args.outputs[k] + offset, result, args.element_aligned);
  }
}

// Every thread reads its part of all inputs before it writes there, so that an output may be one
// of the inputs; that also rules out the read-only data cache.
template <DType dtype, ReduceOp op, int kInputs>
__global__ void __launch_bounds__(kDeviceThreads, kMinBlocks<op>)
    reduce_kernel(const __grid_constant__ DeviceArguments args) {
  constexpr int kPacks = kUnroll<dtype>;
  const Worker worker{blockIdx.x, gridDim.x, threadIdx.x, kDeviceThreads};
  const Stride tile = tiles(args.partition, worker, kPacks);
  for (std::size_t i = tile.begin; i < tile.end; i += tile.stride) {
    reduce_packs<dtype, op, kInputs, kPacks>(args, first_pack(i, worker, kPacks), kDeviceThreads);
  }
  const Stride pack = leftover_packs(args.partition, worker, kPacks);
  for (std::size_t i = pack.begin; i < pack.end; i += pack.stride) {
    reduce_packs<dtype, op, kInputs, 1>(args, i, 0);
  }
  const Stride single = single_elements(args.partition, worker);
  for (std::size_t i = single.begin; i < single.end; i += single.stride) {
    reduce_element<dtype, op>(args, single_element(args.partition, i));
  }
}

template <DType dtype, ReduceOp op>
constexpr DeviceKernels device_kernels() {
  if constexpr (supports(dtype, op)) {
    return {reduce_kernel<dtype, op, 2>, reduce_kernel<dtype, op, 0>};
  } else {
    return {nullptr, nullptr};
  }
}

template <DType dtype, int... ops>
constexpr DeviceRow make_device_row(std::integer_sequence<int, ops...>) {
  return {device_kernels<dtype, static_cast<ReduceOp>(ops)>()...};
}

template <DType dtype>
DeviceRow device_row() {
  return make_device_row<dtype>(std::make_integer_sequence<int, kNumReduceOps>());
}

}  // namespace ringcomm
