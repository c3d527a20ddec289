#include "memory_network.h"

#include <algorithm>
#include <stdexcept>

#include "fault_points.h"
#include "hosts/linked_hosts.h"

namespace ranks {

std::shared_ptr<MemoryNetwork> MemoryNetwork::make(NetworkOptions options) {
  return std::make_shared<MemoryNetwork>(options);
}

MemoryNetwork::MemoryNetwork(NetworkOptions options)
    : options_(options),
      connects_at_(Clock::now() + options.connects_after),
      random_(options.seed) {}

MemoryNetwork::~MemoryNetwork() = default;

// The store is not needed.
ringcomm::shm::ConnectHosts MemoryNetwork::connect_hosts() {
  return ringcomm::hosts::connect(
      [network = shared_from_this()](const std::string&, const std::string&, int rank, int) {
        faults::may_fail();
        const faults::Spared spared;
        return network->engine(rank);
      });
}

void MemoryNetwork::decline(int rank, const std::string& why) {
  const faults::Spared spared;
  std::lock_guard lock(mutex_);
  declined_.try_emplace(rank, why);
  changed_.notify_all();
}

void MemoryNetwork::spread_failures(int rank) {
  for (const auto& [other, why] : declined_) {
    if (other != rank) lost_.try_emplace({rank, other}, why);
  }
}

void MemoryNetwork::lose(int rank, int peer, const std::string& why) {
  std::lock_guard lock(mutex_);
  lost_.try_emplace({rank, peer}, why);
  changed_.notify_all();
}

std::size_t MemoryNetwork::num_sent_from(std::uint8_t stream) {
  std::lock_guard lock(mutex_);
  return std::count_if(used_.begin(), used_.end(), [&](const std::pair<Key, bool>& use) {
    return use.second && std::get<2>(use.first) >= stream;
  });
}

void MemoryNetwork::hold(int from, Clock::duration time) {
  std::lock_guard lock(mutex_);
  held_until_[from] = Clock::now() + time;
}

void MemoryNetwork::silence(int from, int to) {
  std::lock_guard lock(mutex_);
  silent_.insert({from, to});
}

void MemoryNetwork::use(const Key& key, bool is_send) {
  if (!used_.insert({key, is_send}).second) throw std::logic_error("a tag was used twice");
}

bool MemoryNetwork::cut(int from, int to) const {
  return silent_.contains({from, to}) || lost_.contains({from, to}) || lost_.contains({to, from});
}

}  // namespace ranks
