// Connects edges of communicators: a rank and those peers that it is about to exchange something
// with. An edge takes memory of the device, of every channel that NCCL has for it, so that only
// those are connected that a plan uses.
//
// NCCL connects two ranks when they first exchange something, inside ncclGroupEnd, where a blocking
// communicator waits for the peer to come there, too. So before anything else a byte goes over
// an edge, from a thread that can be given up: later no rank waits inside NCCL for a peer, and two
// ranks may both send first from the beginning.
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
  // `memory`, on the device, is memory_nbytes() long. Needs the peers, which connect with this
  // rank, but does not wait for them. `device` is the current one.
  Edges(std::vector<ncclComm_t> comms, std::vector<int> peers, int device,
        std::shared_ptr<void> memory);
  ~Edges() { stop(); }
  Edges(const Edges&) = delete;
  Edges& operator=(const Edges&) = delete;

  static std::size_t memory_nbytes(std::size_t num_comms, std::size_t num_peers) {
    return num_comms * (num_peers + 1);
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
    const std::vector<int> peers;
    const std::shared_ptr<void> memory;
    // By communicator. No streams on which anything waits for the caller's: what that waits for may
    // need this rank to go on.
    std::vector<Stream> streams;
    std::vector<Event> used;
    std::exception_ptr error = nullptr;
    std::atomic<bool> enqueued{false};  // set last
  };
  static void use_all(State& state);

  const int device_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace ringcomm::nccl
