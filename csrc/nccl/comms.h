// Making, aborting and destroying NCCL's communicators.
#pragma once

#include <nccl.h>

#include <vector>

namespace ringcomm::nccl {

// Several communicators of the same ranks, made without ever blocking.
//
// A blocking communicator cannot be given up while it is being made. A non-blocking one starts a
// thread for every group of messages, which costs more than the messages. So a non-blocking one is
// made first, and the blocking ones are split off it one after the other, which does not block
// either.
class Comms {
 public:
  // On the current device. Needs the other ranks, but does not wait for them.
  Comms(const ncclUniqueId& id, int rank, int world_size, int number, int max_ctas);
  ~Comms() { abort(); }
  Comms(const Comms&) = delete;
  Comms& operator=(const Comms&) = delete;

  // True once all are made; to be called until then. Throws Error (kLibrary).
  bool progress();

  const std::vector<ncclComm_t>& get() const { return comms_; }

  // Ends what they are doing, on the device and on the host, and frees them. Works whatever the
  // other ranks do. No thread may be inside NCCL for one of them: see interrupt().
  void abort();

  // Frees them; they are idle. All ranks must do so. Throws Error (kLibrary).
  void destroy();

 private:
  const int rank_;
  const int number_;
  const int max_ctas_;
  ncclComm_t parent_ = nullptr;
  ncclComm_t child_ = nullptr;  // being split off
  std::vector<ncclComm_t> comms_;
};

// Makes threads that are inside NCCL for one of them come back with an error.
void interrupt(const std::vector<ncclComm_t>& comms);

// Throws Error (kLibrary) if NCCL has seen one of them fail.
void check_async(const std::vector<ncclComm_t>& comms);

}  // namespace ringcomm::nccl
