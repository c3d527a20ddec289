// Making, aborting and destroying NCCL's communicators.
#pragma once

#include <nccl.h>

#include <vector>

namespace ringcomm::nccl {

// Makes several communicators of the same ranks without ever blocking.
//
// A blocking communicator cannot be given up while it is being made. A non-blocking one starts a
// thread for every group of messages, which costs more than the messages. So a non-blocking one is
// made first, and the blocking ones are split off it one after the other, which does not block
// either.
class CommSetup {
 public:
  // On the current device. Needs the other ranks, but does not wait for them.
  CommSetup(const ncclUniqueId& id, int rank, int world_size, int num_comms, int max_ctas);
  // Aborts what was not taken.
  ~CommSetup();
  CommSetup(CommSetup&& other) noexcept;
  CommSetup& operator=(CommSetup&&) = delete;

  // True once all are made; to be called until then. Throws Error (kLibrary).
  bool progress();

  std::vector<ncclComm_t> take();

 private:
  const int rank_;
  const int num_comms_;
  const int max_ctas_;
  ncclComm_t parent_ = nullptr;
  ncclComm_t child_ = nullptr;  // being split off
  std::vector<ncclComm_t> comms_;
};

// Ends what they are doing, on the device and on the host, and frees them. Works whatever the other
// ranks do. No other thread may be inside NCCL for one of them: see interrupt().
void abort(std::vector<ncclComm_t>& comms);

// Makes threads that are inside NCCL for one of them come back with an error.
void interrupt(const std::vector<ncclComm_t>& comms);

// Frees communicators that are idle. All ranks must do so.
void destroy(std::vector<ncclComm_t>& comms);

// Throws Error (kLibrary) if NCCL has seen one of them fail.
void check_async(const std::vector<ncclComm_t>& comms);

}  // namespace ringcomm::nccl
