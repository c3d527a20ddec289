// Making, interrupting, aborting and destroying NCCL's communicators.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace ringcomm::nccl {

// Several communicators of the same ranks, made without ever blocking.
//
// A blocking communicator cannot be given up while it is being made. A non-blocking one starts a
// thread for every group of messages, which costs more than the messages. So a non-blocking one is
// made first, and the blocking ones are split off it one after the other, which does not block
// either. It is freed then: a communicator takes memory, even one that does nothing.
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

  // Ends what they are doing on the device, and frees them, whatever the other ranks do. No thread
  // may be inside NCCL for one of them, and no captured graph may refer to one: NCCL would use what
  // it has freed, or wait for ever.
  void abort();

  // Frees them; they are idle. All ranks must do so. Throws Error (kLibrary).
  void destroy();

  // Forgets them, and frees nothing: something goes on using them.
  void leave();

  // Keeps the memory as long as this object.
  void hold(std::shared_ptr<void> memory) { memory_.push_back(std::move(memory)); }

 private:
  std::vector<std::shared_ptr<void>> memory_;
  const int rank_;
  const int number_;
  const int max_ctas_;
  ncclComm_t parent_ = nullptr;
  ncclComm_t child_ = nullptr;  // being split off
  std::vector<ncclComm_t> comms_;
};

// Ends what communicators are doing, and makes threads that are inside NCCL for one of them come
// back with an error. Nothing but aborting them may follow. From a thread of its own, as NCCL waits
// there for the peers on this host to do the same.
class Interruption {
 public:
  Interruption(std::vector<ncclComm_t> comms, int device);

  // Waits until it is over and `is_back` true, but not for long. False: the communicators must be
  // left as they are (or NCCL is older than 2.28.7, and cannot do it, or there is no thread to be
  // had).
  bool succeeds(const std::function<bool()>& is_back);

 private:
  const std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
};

// Throws Error (kLibrary) if NCCL has seen one of them fail.
void check_async(const std::vector<ncclComm_t>& comms);

}  // namespace ringcomm::nccl
