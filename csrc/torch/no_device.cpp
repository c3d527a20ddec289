// Builds without CUDA or without NCCL.
#include "core/status.h"
#include "torch/device.h"

namespace ringcomm {

#ifdef RINGCOMM_WITH_CUDA
const char* missing_for_cuda() {
  return "ringcomm was built where NCCL was not installed. Install the wheel that fits torch's "
         "CUDA, nvidia-nccl-cu13 or nvidia-nccl-cu12, and build ringcomm again";
}
#else
const char* missing_for_cuda() {
  return "ringcomm was built for CPUs only; `python -m ringcomm doctor` says why";
}
#endif

std::unique_ptr<DeviceGroup> make_cuda_group(Group&, at::Device, const streams::DeviceOptions&) {
  throw Error(ErrorKind::kLibrary, missing_for_cuda());
}

}  // namespace ringcomm
