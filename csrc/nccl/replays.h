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
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "core/call.h"
#include "core/chunks.h"
#include "nccl/errors.h"
#include "reduce/reduction.h"

namespace ringcomm::nccl {

// Captures what is enqueued on `stream`, and on others that wait for it. All of them join it again.
class GraphCapture {
 public:
  explicit GraphCapture(cudaStream_t stream);
  // Ends one that something has thrown out of, so that its streams can be used again.
  ~GraphCapture();
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  // The graph stays the capture's.
  cudaGraph_t end();

 private:
  const cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool ended_ = false;
};

// A graph that can be launched.
class Replay {
 public:
  explicit Replay(cudaGraph_t graph) {
    RINGCOMM_CHECK(cudaGraphInstantiateWithFlags(&executable_, graph, 0));
  }
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

  // The graph of this call on this memory; if there is none yet, of what enqueue() enqueues.
  template <typename Enqueue>
  Replay& find(const Call& call, std::span<const Chunk> chunks, const Reduction& reduction,
               cudaStream_t stream, Enqueue&& enqueue) {
    write_key(call, chunks, reduction);
    if (Replay* known = find_by_key()) return *known;
    GraphCapture capture(stream);
    enqueue();
    return add_by_key(capture.end());
  }

  bool empty() const { return known_.empty(); }
  void clear() { known_.clear(); }

 private:
  using Key = std::vector<std::uint64_t>;
  void write_key(const Call& call, std::span<const Chunk> chunks, const Reduction& reduction);
  Replay* find_by_key();
  Replay& add_by_key(cudaGraph_t graph);

  std::vector<Call> kinds_;
  std::list<std::pair<Key, Replay>> known_;  // the last used first
  Key key_;                                  // of the call being made; kept for its memory
};

}  // namespace ringcomm::nccl
