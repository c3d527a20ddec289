#include "gpu/nccl/handles.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"

namespace ringcomm::nccl {

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // or torch's next kernel would raise it
  throw Error(ErrorKind::kLibrary, std::string(call) + " failed with " + cudaGetErrorName(result) +
                                       " (" + std::to_string(static_cast<int>(result)) +
                                       "): " + cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* details = ncclGetLastError(nullptr);
  std::string text = std::string(call) + " failed with NCCL error " +
                     std::to_string(static_cast<int>(result)) + ": " + ncclGetErrorString(result);
  if (details != nullptr && *details != '\0') text += std::string(" (") + details + ")";
  throw Error(ErrorKind::kLibrary, text);
}

std::shared_ptr<void> allocate(std::size_t nbytes, const Allocator& allocator) {
  const RelaxedCapture relaxed;
  void* data = nullptr;
  cudaError_t result = cudaMalloc(&data, nbytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    allocator.reclaim();
    result = cudaMalloc(&data, nbytes);
  }
  check(result, "cudaMalloc(&data, nbytes)");
  if (allocator.held) allocator.held->add(nbytes);
  return {data, [held = allocator.held, nbytes](void* memory) {
            const RelaxedCapture relaxed;
            cudaFree(memory);
            if (held) held->remove(nbytes);
          }};
}

void keep_for_good(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace ringcomm::nccl
