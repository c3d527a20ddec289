// Making the communicators of some ranks, from their first word to connected edges, step by step
// and without ever waiting.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/board.h"
#include "nccl/comms.h"
#include "nccl/edges.h"
#include "nccl/memory.h"

namespace ringcomm::nccl {

class Meeting {
 public:
  struct Party {
    int rank, world_size;  // among those that meet
    int device;            // the current one, whenever progress() is called
    int max_ctas;          // of each communicator
  };

  // One communicator for each stream. `find_id` returns the id that one of the ranks has chosen, or
  // nothing as long as not all have said that they come.
  Meeting(const Party& party, std::vector<cudaStream_t> streams,
          std::function<std::optional<Board::Greeting>()> find_id, const Reclaim& reclaim)
      : party_(party),
        streams_(std::move(streams)),
        find_id_(std::move(find_id)),
        memory_(allocate(Edges::memory_nbytes(streams_.size(), party.world_size), reclaim)) {}
  // Gives up what is not done.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // An id for one of the ranks to choose.
  static Board::Greeting new_id();

  // True once all are made and connected; to be called until then. Throws Error (kLibrary).
  bool progress();

  // Afterwards. They hold the memory: to free it now would wait for all that the device is doing,
  // which may wait for this rank.
  std::unique_ptr<Comms> take() {
    comms_->hold(memory_);
    return std::move(comms_);
  }

 private:
  const Party party_;
  const std::vector<cudaStream_t> streams_;
  const std::function<std::optional<Board::Greeting>()> find_id_;
  const std::shared_ptr<void> memory_;
  std::unique_ptr<Comms> comms_;
  std::optional<Edges> edges_;
};

}  // namespace ringcomm::nccl
