#include "gpu/fused/kernels.h"
#include "gpu/fused/probe.h"

namespace ringcomm::fused {
namespace {

class ProbeMachine : public Signals {
 public:
  RINGCOMM_DEVICE ProbeMachine() : Signals(nullptr, 0) {}

  RINGCOMM_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  RINGCOMM_DEVICE int num_threads() const { return static_cast<int>(blockDim.x); }
};

__global__ void write_kernel(const __grid_constant__ Probe probe) {
  ProbeMachine machine;
  write_patterns(machine, probe);
}

__global__ void find_kernel(const __grid_constant__ Probe probe) {
  ProbeMachine machine;
  find_patterns(machine, probe);
}

cudaError_t launch(void (*kernel)(Probe), const Probe& probe, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kMaxRanks);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, probe);
}

}  // namespace

cudaError_t launch_writes(const Probe& probe, cudaStream_t stream) {
  return launch(write_kernel, probe, stream);
}

cudaError_t launch_finds(const Probe& probe, cudaStream_t stream) {
  return launch(find_kernel, probe, stream);
}

}  // namespace ringcomm::fused
