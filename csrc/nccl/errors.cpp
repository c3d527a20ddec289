#include "nccl/errors.h"

#include <string>

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

}  // namespace ringcomm::nccl
