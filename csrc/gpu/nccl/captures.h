// CUDA graphs in which calls of a group have been captured.
//
// A graph and its replays use the group's memory, and NCCL frees no communicator that one of them
// refers to: finalising or aborting it would wait, for ever if the graph stays. So they are counted
// for as long as CUDA keeps them (a user object goes with the last graph that holds it).
//
// Replays run on any stream, and share scratch with calls that are not captured. One event orders
// all of them: each call waits for it and records it anew, in a graph by external nodes, which
// happen at every replay.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

class Captures {
 public:
  // Whether `user`, behind which `own` is about to be enqueued, is being captured; if so, its graph
  // is one of ours from now on.
  bool note(cudaStream_t user, cudaStream_t own);

  // How many graphs there are that hold something of the group.
  int alive() const { return alive_->load(std::memory_order_acquire); }

  // What graphs refer to.
  std::shared_ptr<void> memory() const { return order_; }

  // Around what is enqueued on `own`, once that waits for the user's stream.
  void begin(cudaStream_t own, bool captured);
  void end(cudaStream_t own, bool captured);

 private:
  using Count = std::shared_ptr<std::atomic<int>>;  // graphs may outlive the group

  const Count alive_ = std::make_shared<std::atomic<int>>(0);
  std::uint64_t last_id_ = 0;  // of a capture
  bool ever_ = false;
  const std::shared_ptr<Event> order_ = std::make_shared<Event>();
};

}  // namespace ringcomm::nccl
