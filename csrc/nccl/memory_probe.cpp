#include "nccl/memory_probe.h"

#include <chrono>

#include "fused/launch.h"
#include "nccl/errors.h"

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::seconds kProbePatience{2};

}  // namespace

bool MemoryProbe::write() { return run(fused::launch_writes); }

bool MemoryProbe::find() { return run(fused::launch_finds); }

bool MemoryProbe::run(Launch launch) {
  if (!is_under_way_) {
    check(launch(probe_, stream_.get()), "launching a kernel that proves what memory is reached");
    is_under_way_ = true;
    began_ = Clock::now();
    RINGCOMM_CHECK(cudaEventRecord(ended_.get(), stream_.get()));
  }
  return has_ended();
}

bool MemoryProbe::has_ended() {
  if (is_under_way_ && ended_.happened()) is_under_way_ = false;
  if (is_under_way_ && Clock::now() - began_ > kProbePatience) {
    throw Error(ErrorKind::kLibrary,
                "a kernel that writes and reads all ranks' memory has not ended after " +
                    std::to_string(kProbePatience.count()) + " s");
  }
  return !is_under_way_;
}

std::string MemoryProbe::describe(const Members& members) const {
  const std::string own = members.name(probe_.rank);
  for (int peer = 0; peer < probe_.world_size; ++peer) {
    const std::string its = members.name(peer);
    if (!(probe_.findings[peer] & fused::kHasArrived)) {
      return "what " + its + " wrote into the memory of " + own + " has not arrived there";
    }
    if (!(probe_.findings[peer] & fused::kIsRead)) {
      return own + " reads other bytes in the memory of " + its + " than are there";
    }
  }
  return "";
}

}  // namespace ringcomm::nccl
