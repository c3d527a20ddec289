// The fused kernels on the streams of fake_cuda.h, for all tests of csrc/nccl/.
#include <functional>

#include "fused/launch.h"
#include "fused_blocks.h"

struct CUstream_st;
namespace fake {
void enqueue(CUstream_st* stream, std::function<void()> operation);
}

namespace ringcomm::fused {

cudaError_t load_kernels() { return cudaSuccess; }

cudaError_t launch(const Job& job, const Reduction& reduction, cudaStream_t stream) {
  fake::enqueue(stream, [=] { fused_blocks::run_lanes(job, reduction, 2, nullptr, 0, job.rank); });
  return cudaSuccess;
}

cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream) {
  return launch(job, reduction, stream);
}

}  // namespace ringcomm::fused
