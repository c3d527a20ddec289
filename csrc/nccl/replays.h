// CUDA graphs of collectives that are called again with the same memory (RINGCOMM_GRAPHS=1).
//
// A collective is many calls to CUDA and NCCL; replaying a graph is one. But both ends of a message
// must be captured, or neither (NCCL's user guide, "Using NCCL with CUDA Graphs"), while each rank
// alone knows whether its memory is that of an earlier call. So whether a call goes through a graph
// must follow from what all ranks know alike: every call does that is not the first of its kind.
// A rank whose memory is new captures it anew, which costs more than the calls; this is for
// programs whose tensors stay where they are, such as DDP's.
//
// Invariant: what a graph refers to, as scratch, events and communicators, is there as long as the
// group, and clear() comes before the communicators' end, which NCCL would put off otherwise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "chunks.h"
#include "nccl/errors.h"
#include "reduce/host.h"
#include "status.h"

namespace ringcomm::nccl {

// A graph that can be launched.
class Replay {
 public:
  // Of what enqueue() enqueues on `stream` and on others that wait for it. All of them join it.
  Replay(cudaStream_t stream, const std::function<void()>& enqueue);
  ~Replay() { cudaGraphExecDestroy(executable_); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void launch(cudaStream_t stream) { RINGCOMM_CHECK(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class Replays {
 public:
  // Whether a call like this one was made before. The same on all ranks.
  bool knows(const Call& call);

  // The graph of this call on this memory, which enqueue() enqueues if there is none yet.
  Replay& find(const Call& call, std::span<const Chunk> chunks, const Reduction& reduction,
               cudaStream_t stream, const std::function<void()>& enqueue);

  bool empty() const { return known_.empty(); }
  void clear() { known_.clear(); }

 private:
  using Key = std::vector<std::uint64_t>;
  void write_key(const Call& call, std::span<const Chunk> chunks, const Reduction& reduction);

  std::vector<Call> kinds_;
  std::list<std::pair<Key, Replay>> known_;  // the last used first
  Key key_;                                  // of the call being made; kept for its memory
};

}  // namespace ringcomm::nccl
