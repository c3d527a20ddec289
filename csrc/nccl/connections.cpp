#include "nccl/connections.h"

#include <numeric>

namespace ringcomm::nccl {

void Connections::set_channels(std::unique_ptr<Comms> channels) {
  channels_ = std::move(channels);
  publish();
}

void Connections::answer() {
  if (messages_.answer()) publish();
}

void Connections::publish() {
  std::lock_guard lock(mutex_);
  in_use_ = messages_.comms();
  if (!channels_) return;
  in_use_.insert(in_use_.end(), channels_->get().begin(), channels_->get().end());
}

std::vector<int> Connections::partners() const {
  std::vector<int> ranks;
  if (channels_) {
    ranks.resize(group_.world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
  } else {
    ranks = messages_.peers();
    ranks.push_back(group_.rank);
  }
  return ranks;
}

void Connections::check() {
  std::lock_guard lock(mutex_);
  check_async(in_use_);
}

bool Connections::interrupt(const std::function<bool()>& is_back) {
  std::vector<ncclComm_t> comms;
  {
    std::lock_guard lock(mutex_);
    comms = std::exchange(in_use_, {});
  }
  return comms.empty() || Interruption(std::move(comms), device_).succeeds(is_back);
}

void Connections::abort() {
  {
    std::lock_guard lock(mutex_);
    in_use_.clear();
  }
  if (channels_) channels_->abort();
  messages_.abort();
}

void Connections::destroy() {
  {
    std::lock_guard lock(mutex_);
    in_use_.clear();
  }
  messages_.destroy();
  if (channels_) channels_->destroy();
}

void Connections::leave() {
  {
    std::lock_guard lock(mutex_);
    in_use_.clear();
  }
  if (channels_) channels_->leave();
  messages_.leave();
}

}  // namespace ringcomm::nccl
