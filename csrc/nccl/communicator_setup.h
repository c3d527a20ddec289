// Making the communicators of some ranks, from their first word to the edges that are wanted at
// once, step by step and without ever waiting.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/device_board.h"
#include "nccl/comms.h"
#include "nccl/edges.h"
#include "nccl/memory.h"

namespace ringcomm::nccl {

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
