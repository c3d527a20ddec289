#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "reduce/device.h"
#include "reduce/functors.h"
#include "reduce/partition.h"

namespace ringcomm {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;

struct Arguments {
  const std::byte* inputs[kMaxDeviceInputs];
  std::byte* outputs[2];
  int num_inputs, num_outputs;
  Partition partition;
  bool element_aligned;  // every pointer is a multiple of the element size
  int divisor;
  int scaled_input;
  double factor;
};

// ----------------------------------------------------------------------------
// kernels

template <DType dtype>
struct alignas(kPackBytes) Pack {
  static constexpr int kCount = static_cast<int>(kPackBytes / sizeof(Storage<dtype>));
  Storage<dtype> values[kCount];
};

// Up to 64 bytes of every input in flight per thread; fewer where a pack widens into more
// registers than it takes in memory.
template <DType dtype>
constexpr int kUnroll = std::min<int>(4, sizeof(Storage<dtype>));

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
__device__ __forceinline__ T input_factor(const Arguments& args, int k) {
  return k == args.scaled_input ? static_cast<T>(args.factor) : T(1);
}

// Reduces kPacks packs of each input, `stride` packs apart. kInputs: the number of inputs where
// it is known at compile time, else 0.
template <DType dtype, ReduceOp op, int kInputs, int kPacks>
__device__ __forceinline__ void reduce_packs(const Arguments& args, std::size_t first,
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
      packs[u].values[i] = Element<dtype>::store(finish<op>(sums[u][i], args.divisor));
    }
  }
  for (int k = 0; k < args.num_outputs; ++k) {
    P* out = reinterpret_cast<P*>(args.outputs[k] + offset);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) out[u * stride] = packs[u];
  }
}

template <DType dtype, ReduceOp op>
__device__ __forceinline__ void reduce_element(const Arguments& args, std::size_t index) {
  using T = Accumulator<dtype>;
  using S = Storage<dtype>;
  const std::size_t offset = index * sizeof(S);
  T sum{};
  for (int k = 0; k < args.num_inputs; ++k) {
    const S stored = load_single<S>(args.inputs[k] + offset, args.element_aligned);
    const T value = scaled<op>(Element<dtype>::load(stored), input_factor<T>(args, k));
    sum = k == 0 ? value : combine<dtype, op>(sum, value);
  }
  const S result = Element<dtype>::store(finish<op>(sum, args.divisor));
  for (int k = 0; k < args.num_outputs; ++k) {
    store_single(args.outputs[k] + offset, result, args.element_aligned);
  }
}

// Every thread reads its part of all inputs before it writes there, so that an output may be one
// of the inputs; that also rules out the read-only data cache.
template <DType dtype, ReduceOp op, int kInputs>
__global__ void __launch_bounds__(kThreads) reduce_kernel(const __grid_constant__ Arguments args) {
  constexpr int kPacks = kUnroll<dtype>;
  const Worker worker{blockIdx.x, gridDim.x, threadIdx.x, kThreads};
  const Stride tile = tiles(args.partition, worker, kPacks);
  for (std::size_t i = tile.begin; i < tile.end; i += tile.stride) {
    reduce_packs<dtype, op, kInputs, kPacks>(args, first_pack(i, worker, kPacks), kThreads);
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

// ----------------------------------------------------------------------------
// kernel launchers

using Kernel = void (*)(Arguments);

struct Kernels {
  Kernel two_inputs, many_inputs;
};

template <DType dtype, ReduceOp op>
constexpr Kernels kernels() {
  if constexpr (supports(dtype, op)) {
    return {reduce_kernel<dtype, op, 2>, reduce_kernel<dtype, op, 0>};
  } else {
    return {nullptr, nullptr};
  }
}

template <DType dtype, int... ops>
constexpr auto row(std::integer_sequence<int, ops...>) {
  return std::array<Kernels, kNumReduceOps>{kernels<dtype, static_cast<ReduceOp>(ops)>()...};
}

template <int... dtypes>
constexpr auto table(std::integer_sequence<int, dtypes...>) {
  return std::array<std::array<Kernels, kNumReduceOps>, kNumDTypes>{
      row<static_cast<DType>(dtypes)>(std::make_integer_sequence<int, kNumReduceOps>())...};
}

constexpr auto kTable = table(std::make_integer_sequence<int, kNumDTypes>());

Arguments make_arguments(const Reduction& reduction, const void* const* inputs, int num_inputs,
                         void* const* outputs, int num_outputs, std::size_t count) {
  Arguments args{};
  args.num_inputs = num_inputs;
  args.num_outputs = num_outputs;
  args.divisor = reduction.divisor;
  args.scaled_input = reduction.scaled_input;
  args.factor = reduction.factor;
  const std::size_t element_bytes = element_size(reduction.dtype);
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(outputs[0]);
  std::uintptr_t differing = 0;
  std::uintptr_t any = 0;
  const auto note = [&](const void* pointer) {
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(pointer);
    differing |= bits ^ address;
    any |= bits;
  };
  for (int k = 0; k < num_inputs; ++k) {
    args.inputs[k] = static_cast<const std::byte*>(inputs[k]);
    note(inputs[k]);
  }
  for (int k = 0; k < num_outputs; ++k) {
    args.outputs[k] = static_cast<std::byte*>(outputs[k]);
    note(outputs[k]);
  }
  args.partition = make_partition(address, differing % kPackBytes == 0, element_bytes, count);
  args.element_aligned = any % element_bytes == 0;
  return args;
}

}  // namespace

cudaError_t reduce_device(const Reduction& reduction, const void* const* inputs, int num_inputs,
                          void* const* outputs, int num_outputs, std::size_t count,
                          cudaStream_t stream) {
  if (num_inputs < 1 || num_inputs > kMaxDeviceInputs || num_outputs < 1 || num_outputs > 2) {
    return cudaErrorInvalidValue;
  }
  if (!supports(reduction.dtype, reduction.op)) return cudaErrorNotSupported;
  if (count == 0) return cudaSuccess;

  int device = 0;
  int num_multiprocessors = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (cudaError_t error =
          cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }

  const ReduceOp op = effective_op(reduction);
  const Kernels& entry =
      kTable[static_cast<std::size_t>(reduction.dtype)][static_cast<std::size_t>(op)];
  const Arguments args = make_arguments(reduction, inputs, num_inputs, outputs, num_outputs, count);
  const Partition& p = args.partition;
  const std::size_t work = std::max(p.num_packs, p.head + (p.count - p.body_end));
  const std::size_t num_blocks =
      std::min((work + kThreads - 1) / kThreads,
               static_cast<std::size_t>(num_multiprocessors) * kBlocksPerMultiprocessor);

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, num_inputs == 2 ? entry.two_inputs : entry.many_inputs, args);
}

}  // namespace ringcomm
