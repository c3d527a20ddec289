#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <utility>

#include "reduce/device.h"
#include "reduce/device_rows.h"

namespace ringcomm {
namespace {

// By dtype.
template <int... dtypes>
std::array<DeviceRow, kNumDTypes> make_table(std::integer_sequence<int, dtypes...>) {
  return {device_row<static_cast<DType>(dtypes)>()...};
}

DeviceKernel find_kernel(const DeviceLaunch& launch) {
  static const auto kTable = make_table(std::make_integer_sequence<int, kNumDTypes>());
  return kTable[static_cast<std::size_t>(launch.key.dtype)][static_cast<std::size_t>(launch.key.op)]
               [static_cast<std::size_t>(launch.batch)];
}

// Of the current device, which the driver is asked once for each.
cudaError_t count_multiprocessors(int* count) {
  static std::array<std::atomic<int>, 64> known{};
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const bool remembered = static_cast<std::size_t>(device) < known.size();
  *count = remembered ? known[device].load(std::memory_order_relaxed) : 0;
  if (*count > 0) return cudaSuccess;
  const cudaError_t error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess && remembered) known[device].store(*count, std::memory_order_relaxed);
  return error;
}

}  // namespace

cudaError_t reduce_device(const Reduction& reduction, const void* const* inputs, int num_inputs,
                          void* const* outputs, int num_outputs, std::size_t count,
                          cudaStream_t stream) {
  if (num_inputs < 1 || num_inputs > kMaxDeviceInputs || num_outputs < 1 ||
      num_outputs > kMaxDeviceOutputs) {
    return cudaErrorInvalidValue;
  }
  if (!supports(reduction.dtype, reduction.op)) return cudaErrorNotSupported;
  if (count == 0) return cudaSuccess;

  int num_multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(&num_multiprocessors); error != cudaSuccess) {
    return error;
  }
  const DeviceLaunch launch =
      plan_launch(reduction, inputs, num_inputs, outputs, num_outputs, count, num_multiprocessors);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.num_blocks);
  config.blockDim = dim3(kDeviceThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, find_kernel(launch), launch.arguments);
}

}  // namespace ringcomm
