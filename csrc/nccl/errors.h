// Failures of CUDA and NCCL as Errors that carry the call, its code and its text.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace ringcomm::nccl {

// Throw Error (kLibrary) unless the call succeeded. NCCL's "in progress" is no failure. CUDA's last
// error is cleared: it belongs to the Error from then on.
void check(cudaError_t result, const char* call);
void check(ncclResult_t result, const char* call);

}  // namespace ringcomm::nccl

// RINGCOMM_CHECK(cudaEventRecord(event, stream))
#define RINGCOMM_CHECK(call) ::ringcomm::nccl::check((call), #call)
