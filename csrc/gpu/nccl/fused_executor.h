// Carries out programs with fused kernels, one launch for each call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/call.h"
#include "core/chunks.h"
#include "core/members.h"
#include "gpu/fused/job.h"
#include "gpu/nccl/fused_memory.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

class FusedExecutor {
 public:
  // All ranks reach all memory by now. Loads the kernels: if they were loaded later, that might
  // wait for a kernel that waits for a peer.
  FusedExecutor(int rank, std::unique_ptr<FusedMemory> memory, Reclaim reclaim);
  FusedExecutor(const FusedExecutor&) = delete;
  FusedExecutor& operator=(const FusedExecutor&) = delete;

  // Whether a kernel can carry out the program. It is the same on all ranks.
  bool takes(const Program& program) const;

  // Enqueues the call on `stream`, which is the same for all calls. The program must stay where it
  // is.
  void run(const Call& call, const Program& program, std::span<const Chunk> chunks,
           const Reduction& reduction, cudaStream_t stream);

  // The same for a small call, whose blocks are not cut into a plan's chunks: gpu/fused/eager.h
  // carries it out in one hop or two.
  bool is_eager(const Call& call, std::span<const Chunk> blocks) const {
    return fused::is_eager(call, blocks, memory_->layout()) ||
           fused::takes_two_hops(call, blocks, memory_->layout());
  }
  void run_eagerly(const Call& call, std::span<const Chunk> blocks, const Reduction& reduction,
                   cudaStream_t stream);

  // Any thread may call this. Kernels end without their results.
  void give_up();
  // Any thread may call this. The ranks that the kernels have long been waiting for: " Its device
  // waits for rank 2.", or nothing.
  std::string describe_waits(const Members& members) const;

  // See FusedMemory::let_go().
  bool let_go() { return memory_->let_go(); }

 private:
  struct Uploaded {
    std::shared_ptr<void> memory;
    fused::Script script;
  };

  void find_memory(fused::Job& job) const;
  const fused::Script& script_of(const Program& program);
  std::byte* scratch_of(std::size_t nbytes);

  const int rank_;
  const std::unique_ptr<FusedMemory> memory_;
  const Reclaim reclaim_;
  int arch_ = 0;  // of the kernels: gpu/fused/threads.h
  std::map<const Program*, Uploaded> scripts_;
  // The last is in use. Graphs may use those before it.
  std::vector<std::shared_ptr<void>> scratch_;
  std::size_t scratch_nbytes_ = 0;
};

}  // namespace ringcomm::nccl
