#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "reduce/device.h"
#include "reduce/device_table.h"

namespace ringcomm {
namespace {

DeviceKernel find_kernel(const DeviceLaunch& launch) {
  static const std::array<DeviceTable, kNumDeviceTypes> kTables = {
      device_table<DeviceTypes::kFloat>(), device_table<DeviceTypes::kFloat8>(),
      device_table<DeviceTypes::kInt>()};
  const auto [dtype, op] = launch.key;
  return kTables[static_cast<std::size_t>(device_types_of(dtype))][static_cast<std::size_t>(dtype)]
                [static_cast<std::size_t>(op)][static_cast<std::size_t>(launch.batch)];
}

// The driver is asked once for each device.
using Known = std::array<std::atomic<int>, 64>;

cudaError_t find(Known& known, int device, cudaDeviceAttr attribute, int* value) {
  const bool remembered = static_cast<std::size_t>(device) < known.size();
  *value = remembered ? known[device].load(std::memory_order_relaxed) : 0;
  if (*value > 0) return cudaSuccess;
  const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
  if (error == cudaSuccess && remembered) known[device].store(*value, std::memory_order_relaxed);
  return error;
}

// Finds the properties of the current device.
cudaError_t find_properties(DeviceProperties* properties) {
  static Known multiprocessors{}, l2_sizes{};
  int device = 0, l2_nbytes = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (cudaError_t error = find(multiprocessors, device, cudaDevAttrMultiProcessorCount,
                               &properties->num_multiprocessors);
      error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = find(l2_sizes, device, cudaDevAttrL2CacheSize, &l2_nbytes);
  properties->l2_nbytes = static_cast<std::size_t>(l2_nbytes);
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

  DeviceProperties device{};
  if (cudaError_t error = find_properties(&device); error != cudaSuccess) return error;
  const DeviceLaunch launch =
      plan_launch(reduction, inputs, num_inputs, outputs, num_outputs, count, device);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.num_blocks);
  config.blockDim = dim3(kDeviceThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, find_kernel(launch), launch.arguments);
}

}  // namespace ringcomm
