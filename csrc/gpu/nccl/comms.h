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
// A rank cannot give up on a blocking communicator while NCCL makes it. A non-blocking one starts a
// thread for every group of messages, which costs more than the messages. So a non-blocking one is
// made first, and the blocking ones are split off it one after the other, which does not block
// either. Then the first one is freed, because a communicator takes memory even if it does nothing.
class Comms {
 public:
  // Begins on the current device. The other ranks must do the same; this does not wait for them.
  Comms(const ncclUniqueId& id, int rank, int world_size, int number, int max_ctas);
  ~Comms() { abort(); }
  Comms(const Comms&) = delete;
  Comms& operator=(const Comms&) = delete;

  // True once all are made. Call it until then. Throws Error (kLibrary).
  bool progress();

  const std::vector<ncclComm_t>& get() const { return comms_; }

  // Ends what the communicators do on the device and frees them, whatever the other ranks do. No
  // thread may be inside NCCL for one of them, and no captured graph may refer to one: NCCL would
  // use freed memory, or hang.
  void abort();

  // Frees the communicators, which are idle. All ranks must do so. Throws Error (kLibrary).
  void destroy();

  // Forgets the communicators and frees nothing, because something still uses them.
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

// Ends what communicators are doing, and makes threads inside NCCL return with an error. Afterwards
// the communicators may only be aborted. It runs on a thread of its own, because NCCL waits until
// the peers on this host do the same.
class Interruption {
 public:
  Interruption(std::vector<ncclComm_t> comms, int device);

  // Waits a short time until the interruption is over and is_back() is true. False: the
  // communicators must be left as they are. It is also false if NCCL is older than 2.28.7, which
  // cannot interrupt, or if no thread could be started.
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
  // `memory`, on the device, has memory_nbytes() bytes. The peers must connect with this rank, too;
  // this does not wait for them. `device` is the current one.
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

  // Interrupts connections that are not made yet; then the communicators can only be aborted.
  // False: a thread is still inside NCCL for them, and they must be left.
  bool stop();

 private:
  // The thread owns it, too, because it may have to be left behind.
  struct State {
    const std::vector<ncclComm_t> comms;
    const std::vector<int> peers;
    const std::shared_ptr<void> memory;
    // By communicator. Nothing on these streams waits for the caller's stream: that stream may wait
    // for something that needs this rank.
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
    int rank, world_size;    // among the ranks of the communicators
    int device;              // the current one, whenever progress() is called
    int max_ctas;            // of each communicator
    std::vector<int> peers;  // to be connected now; other ranks may be connected later
  };

  // `find_id` returns the id that one of the ranks has chosen, or nothing until all ranks have
  // announced that they take part.
  CommunicatorSetup(const Party& party, int num_comms,
                    std::function<std::optional<DeviceBoard::UniqueId>()> find_id,
                    const Allocator& allocator)
      : party_(party),
        num_comms_(num_comms),
        find_id_(std::move(find_id)),
        memory_(party.peers.empty()
                    ? nullptr
                    : allocate(Edges::memory_nbytes(num_comms_, party.peers.size()), allocator)) {}
  // Interrupts connections that are not made yet.
  ~CommunicatorSetup();
  CommunicatorSetup(const CommunicatorSetup&) = delete;
  CommunicatorSetup& operator=(const CommunicatorSetup&) = delete;

  // An id for one of the ranks to choose.
  static DeviceBoard::UniqueId new_id();

  // True once all communicators are made and connected with those peers. Call it until then. Throws
  // Error (kLibrary).
  bool progress();

  // Call it afterwards. The communicators hold the memory: to free it now would wait for all that
  // the device is doing, which may wait for this rank.
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
