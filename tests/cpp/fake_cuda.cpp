#include "fake_cuda.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "fake_graph.h"

namespace fake {
namespace {

std::mutex contexts_mutex;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool fails_again = false;

}  // namespace

std::set<int> contexts;
std::atomic<int> num_allocations{0};
std::atomic<bool> has_room{true};
std::atomic<int> failing_allocation{0};
constinit thread_local bool failed_here = false;
std::atomic<bool> opens_memory{true};

cudaError_t returned(cudaError_t result) {
  if (result != cudaSuccess && result != cudaErrorNotReady) last_error = result;
  return result;
}

}  // namespace fake

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  fake::current_device = device;
  std::lock_guard lock(fake::contexts_mutex);
  fake::contexts.insert(device);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t nbytes) {
  if (fake::is_forbidden_by_captures()) return fake::returned(cudaErrorStreamCaptureUnsupported);
  if (std::exchange(fake::fails_again, false) || !fake::has_room) {
    return fake::returned(cudaErrorMemoryAllocation);
  }
  if (fake::failing_allocation > 0 && --fake::failing_allocation == 0) {
    fake::failed_here = fake::fails_again = true;
    return fake::returned(cudaErrorMemoryAllocation);
  }
  ++fake::num_allocations;
  *data = std::aligned_alloc(256, (nbytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data != nullptr) --fake::num_allocations;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t nbytes, unsigned) { return cudaMalloc(data, nbytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  std::memcpy(handle, &data, sizeof(data));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  if (!fake::opens_memory) return fake::returned(cudaErrorPeerAccessUnsupported);
  ++fake::num_allocations;
  std::memcpy(data, &handle, sizeof(*data));
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  --fake::num_allocations;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return fake::returned(fake::opens_memory ? cudaErrorPeerAccessAlreadyEnabled
                                           : cudaErrorPeerAccessUnsupported);
}
cudaError_t cudaGetLastError() { return std::exchange(fake::last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "a failure that was asked for"; }

}  // extern "C"
