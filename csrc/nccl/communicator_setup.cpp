#include "nccl/communicator_setup.h"

#include <cstring>

#include "nccl/errors.h"

namespace ringcomm::nccl {

static_assert(sizeof(ncclUniqueId) == kUniqueIdNbytes);

DeviceBoard::UniqueId CommunicatorSetup::new_id() {
  ncclUniqueId id;
  RINGCOMM_CHECK(ncclGetUniqueId(&id));
  DeviceBoard::UniqueId unique_id;
  std::memcpy(unique_id.data(), &id, sizeof(id));
  return unique_id;
}

CommunicatorSetup::~CommunicatorSetup() {
  if (edges_ && !edges_->stop() && comms_) comms_->leave();
}

bool CommunicatorSetup::progress() {
  if (!comms_) {
    const std::optional<DeviceBoard::UniqueId> unique_id = find_id_();
    if (!unique_id) return false;
    ncclUniqueId id;
    std::memcpy(&id, unique_id->data(), sizeof(id));
    comms_ =
        std::make_unique<Comms>(id, party_.rank, party_.world_size, num_comms_, party_.max_ctas);
  }
  if (!comms_->progress()) return false;
  if (party_.peers.empty()) return true;
  if (!edges_) {
    edges_.emplace(comms_->get(), party_.peers, party_.device, memory_);
  }
  return edges_->connected();
}

}  // namespace ringcomm::nccl
