#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <utility>

#include "reduce/device.h"
#include "reduce/device_table.h"

namespace ringcomm {
namespace {

// By dtype.
template <int... dtypes>
std::array<DeviceRow, kNumDTypes> make_table(std::integer_sequence<int, dtypes...>) {
  return {device_row<static_cast<DType>(dtypes)>()...};
}

const DeviceKernels& find_kernels(DType dtype, ReduceOp op) {
  static const auto kTable = make_table(std::make_integer_sequence<int, kNumDTypes>());
  return kTable[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
}

DeviceArguments make_arguments(const Reduction& reduction, const void* const* inputs,
                               int num_inputs, void* const* outputs, int num_outputs,
                               std::size_t count) {
  DeviceArguments args{};
  args.num_inputs = num_inputs;
  args.num_outputs = num_outputs;
  args.divisor = reduction.divisor;
  args.float_divisor = UniformDivisor::of(reduction.divisor);
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

  const DeviceKernels& entry = find_kernels(reduction.dtype, effective_op(reduction));
  const DeviceArguments args =
      make_arguments(reduction, inputs, num_inputs, outputs, num_outputs, count);
  const Partition& p = args.partition;
  const std::size_t work = std::max(p.num_packs, p.head + (p.count - p.body_end));
  const std::size_t num_blocks =
      std::min((work + kDeviceThreads - 1) / kDeviceThreads,
               static_cast<std::size_t>(num_multiprocessors) * kBlocksPerMultiprocessor);

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(kDeviceThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, num_inputs == 2 ? entry.two_inputs : entry.many_inputs, args);
}

}  // namespace ringcomm
