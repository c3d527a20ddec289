#include "nccl/meeting.h"

#include <cstring>

#include "nccl/errors.h"

namespace ringcomm::nccl {

static_assert(sizeof(ncclUniqueId) == kGreetingNbytes);

Board::Greeting Meeting::new_id() {
  ncclUniqueId id;
  RINGCOMM_CHECK(ncclGetUniqueId(&id));
  Board::Greeting greeting;
  std::memcpy(greeting.data(), &id, sizeof(id));
  return greeting;
}

Meeting::~Meeting() {
  if (edges_ && !edges_->stop() && comms_) comms_->leave();
}

bool Meeting::progress() {
  if (!comms_) {
    const std::optional<Board::Greeting> greeting = find_id_();
    if (!greeting) return false;
    ncclUniqueId id;
    std::memcpy(&id, greeting->data(), sizeof(id));
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
