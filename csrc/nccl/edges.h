// Connects the edges of new communicators.
//
// NCCL connects two ranks when they first exchange something, inside ncclGroupEnd, where a blocking
// communicator waits for the peer to come there, too. So before anything else a byte goes over
// every edge, from a thread that can be given up: later nobody waits inside NCCL for a peer, and
// two ranks may both send first from the beginning.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "nccl/handles.h"

namespace ringcomm::nccl {

class Edges {
 public:
  // Communicator i uses stream i. `memory`, on the device, is memory_nbytes() long. Needs the other
  // ranks, but does not wait for them.
  Edges(std::vector<ncclComm_t> comms, int rank, int world_size, int device,
        std::vector<cudaStream_t> streams, std::shared_ptr<void> memory);
  ~Edges() { stop(); }
  Edges(const Edges&) = delete;
  Edges& operator=(const Edges&) = delete;

  static std::size_t memory_nbytes(std::size_t num_comms, int world_size) {
    return num_comms * (world_size + 1);
  }

  // Whether all are connected. Throws Error (kLibrary).
  bool connected() const;

  // Interrupts what is not done; the communicators can only be aborted then. False: a thread is
  // still inside NCCL for them, and they must be left.
  bool stop();

 private:
  // Of the thread, too, which may have to be left to itself.
  struct State {
    const std::vector<ncclComm_t> comms;
    const std::vector<cudaStream_t> streams;
    const std::shared_ptr<void> memory;
    std::vector<Event> used;  // by communicator
    std::exception_ptr error = nullptr;
    std::atomic<bool> enqueued{false};  // set last
  };
  static void use_all(State& state, int rank, int world_size);

  const int device_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace ringcomm::nccl
