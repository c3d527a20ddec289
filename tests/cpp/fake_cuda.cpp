#include "fake_cuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "fake_graph.h"

namespace fake {
namespace {

std::mutex contexts_mutex;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool fails_again = false;

std::mutex memory_mutex;
std::map<void*, std::size_t> sizes;  // of what is allocated
std::set<void*> copies;              // of it, that were opened
std::map<void*, std::thread::id> owners;
std::set<void*> on_host;  // of what is allocated

void* copy_of(void* data, bool same_bytes) {
  std::lock_guard lock(memory_mutex);
  const std::size_t nbytes = sizes.at(data);
  void* const copy = std::malloc(nbytes);
  copies.insert(copy);
  if (!same_bytes) return std::memset(copy, 0x5a, nbytes);
  // Meanwhile others write there, a word at once.
  for (std::size_t at = 0; at + 8 <= nbytes; at += 8) {
    std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(data) + at));
    const std::uint64_t value = word.load(std::memory_order_relaxed);
    std::memcpy(static_cast<std::byte*>(copy) + at, &value, sizeof(value));
  }
  return copy;
}

}  // namespace

std::set<int> contexts;
std::atomic<int> num_multiprocessors{160};
std::atomic<int> num_allocations{0};
std::atomic<bool> has_room{true};
std::atomic<int> failing_allocation{0};
constinit thread_local bool failed_here = false;
std::atomic<bool> opens_memory{true};
constinit thread_local Opened opened_here = Opened::kSame;
std::atomic<int> misreading_rank{-1};
std::atomic<int> muted_rank{-1};
std::atomic<int> hanging_rank{-1};
std::atomic<int> delayed_rank{-1};
std::atomic<bool> has_native_atomics{true};
std::atomic<bool> sees_all_devices{true};

std::size_t held_by_this_thread() {
  std::lock_guard lock(memory_mutex);
  std::size_t nbytes = 0;
  for (const auto& [data, owner] : owners) {
    if (owner == std::this_thread::get_id() && !on_host.contains(data)) nbytes += sizes.at(data);
  }
  return nbytes;
}

void end_process_of_this_thread() {
  std::vector<void*> owned;
  {
    std::lock_guard lock(memory_mutex);
    for (const auto& [data, owner] : owners) {
      if (owner == std::this_thread::get_id()) owned.push_back(data);
    }
  }
  for (void* const data : owned) cudaFree(data);
}

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
  std::lock_guard lock(fake::memory_mutex);
  fake::sizes[*data] = nbytes;
  fake::owners[*data] = std::this_thread::get_id();
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data != nullptr) --fake::num_allocations;
  {
    std::lock_guard lock(fake::memory_mutex);
    fake::owners.erase(data);
    fake::on_host.erase(data);
  }
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t nbytes, unsigned) {
  const cudaError_t result = cudaMalloc(data, nbytes);
  std::lock_guard lock(fake::memory_mutex);
  if (result == cudaSuccess) fake::on_host.insert(*data);
  return result;
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  std::memcpy(handle, &data, sizeof(data));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  if (!fake::opens_memory) return fake::returned(cudaErrorPeerAccessUnsupported);
  ++fake::num_allocations;
  std::memcpy(data, &handle, sizeof(*data));
  if (fake::opened_here != fake::Opened::kSame) {
    *data = fake::copy_of(*data, fake::opened_here == fake::Opened::kCopy);
  }
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* data) {
  --fake::num_allocations;
  std::lock_guard lock(fake::memory_mutex);
  if (fake::copies.erase(data) > 0) std::free(data);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return fake::returned(fake::opens_memory ? cudaErrorPeerAccessAlreadyEnabled
                                           : cudaErrorPeerAccessUnsupported);
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  if (!fake::sees_all_devices) return fake::returned(cudaErrorInvalidDevice);
  *device = static_cast<int>(std::strtol(id + 5, nullptr, 16));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = fake::has_native_atomics;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return fake::returned(cudaErrorInvalidValue);
  *value = fake::num_multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(fake::last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "a failure that was asked for"; }

}  // extern "C"
