// One rank's part in the proof that all ranks reach each other's memory: fused/probe.h.
#pragma once

#include <string>

#include "core/deadline.h"
#include "core/members.h"
#include "fused/probe.h"
#include "nccl/handles.h"

namespace ringcomm::nccl {

class MemoryProbe {
 public:
  // Before any rank's find(). `probe` refers to memory that stays as long as this object, and if
  // hangs(), as long as the process.
  explicit MemoryProbe(const fused::Probe& probe) : probe_(probe) {}

  // Each is to be called until it returns true, and find() when all ranks have written. They do not
  // wait. Throw Error (kLibrary), also if a kernel takes longer than 2 s.
  bool write();
  bool find();

  // In place of them, where their result does not matter any more: no kernel is under way.
  bool has_ended();

  // After find(). What the rank does not reach, and how that shows; empty: it reaches all.
  std::string describe(const Members& members) const;

  // Whether a kernel has begun, and not been seen to end.
  bool hangs() const { return is_under_way_; }

 private:
  using Launch = cudaError_t (*)(const fused::Probe&, cudaStream_t);
  bool run(Launch launch);

  const fused::Probe probe_;
  const Stream stream_;
  Event ended_;
  bool is_under_way_ = false;  // a kernel, as far as is known
  Clock::time_point began_{};
};

}  // namespace ringcomm::nccl
