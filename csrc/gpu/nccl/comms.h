// NCCL's communicators: making them without ever waiting, connecting their ranks, and interrupting,
// aborting and destroying them.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/device_board.h"
#include "gpu/nccl/handles.h"

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

// Connects edges of communicators: a rank and those peers that it is about to exchange something
// with. An edge takes memory of the device, for every channel that NCCL has for it, so only those
// edges are connected that a plan uses.
//
// NCCL connects two ranks when they first exchange something, inside ncclGroupEnd, where a blocking
// communicator waits for the peer to come there, too. So before anything else a byte is sent over
// an edge, from a thread that can be given up: later no rank waits inside NCCL for a peer, and two
// ranks may both send first from the beginning.
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

// Makes the communicators of some ranks, from the exchange of NCCL's id to the edges that are
// wanted at once, step by step and without ever waiting.
class CommunicatorSetup {
 public:
  struct Party {
    int rank, world_size;    // among those that meet
    int device;              // the current one, whenever progress() is called
    int max_ctas;            // of each communicator
    std::vector<int> peers;  // to be connected with, too; the others that meet may be later
  };

  // `find_id` returns the id that one of the ranks has chosen, or nothing as long as not all have
  // said that they come.
  CommunicatorSetup(const Party& party, int num_comms,
                    std::function<std::optional<DeviceBoard::UniqueId>()> find_id,
                    const Reclaim& reclaim)
      : party_(party),
        num_comms_(num_comms),
        find_id_(std::move(find_id)),
        memory_(party.peers.empty()
                    ? nullptr
                    : allocate(Edges::memory_nbytes(num_comms_, party.peers.size()), reclaim)) {}
  // Gives up what is not done.
  ~CommunicatorSetup();
  CommunicatorSetup(const CommunicatorSetup&) = delete;
  CommunicatorSetup& operator=(const CommunicatorSetup&) = delete;

  // An id for one of the ranks to choose.
  static DeviceBoard::UniqueId new_id();

  // True once all are made, and connected with those peers; to be called until then. Throws Error
  // (kLibrary).
  bool progress();

  // Afterwards. They hold the memory: to free it now would wait for all that the device is doing,
  // which may wait for this rank.
  std::unique_ptr<Comms> take() {
    comms_->hold(memory_);
    return std::move(comms_);
  }

 private:
  const Party party_;
  const int num_comms_;
  const std::function<std::optional<DeviceBoard::UniqueId>()> find_id_;
  const std::shared_ptr<void> memory_;
  std::unique_ptr<Comms> comms_;
  std::optional<Edges> edges_;
};

}  // namespace ringcomm::nccl
