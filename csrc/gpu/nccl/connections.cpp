#include "gpu/nccl/connections.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {
namespace {

constexpr int kMessageCtas = 4;

}  // namespace

std::string describe(const PeerMessage& message) {
  return std::string(message.is_send ? "send" : "recv") +
         "(nbytes=" + std::to_string(message.nbytes) + ", peer=" + std::to_string(message.peer) +
         ")";
}

bool Connections::ready(int peer) {
  if (!pairs_.contains(peer)) begin_setup(peer);
  return find(peer) != nullptr;
}

void Connections::answer() {
  for (int peer = 0; peer < group_.world_size; ++peer) {
    if (peer != group_.rank && !pairs_.contains(peer) && has_come(peer)) begin_setup(peer);
  }
  bool connected = false;
  for (auto& [peer, pair] : pairs_) {
    if (pair.comms || !pair.setup->progress()) continue;
    pair.comms = pair.setup->take();
    pair.setup.reset();
    connected = true;
  }
  if (connected) publish();
}

// The lower rank chooses the id and sends it. The id that the higher rank sends is empty and means
// only that this rank takes part.
void Connections::begin_setup(int peer) {
  const bool is_lower = group_.rank < peer;
  const DeviceBoard::UniqueId own =
      is_lower ? CommunicatorSetup::new_id() : DeviceBoard::UniqueId{};
  Pair& pair = pairs_.try_emplace(peer, priority_).first->second;
  pair.setup = std::make_unique<CommunicatorSetup>(
      CommunicatorSetup::Party{is_lower ? 0 : 1, 2, device_, kMessageCtas, {is_lower ? 1 : 0}}, 2,
      [this, peer, is_lower, own] {
        std::optional<DeviceBoard::UniqueId> theirs = board_.unique_id_of(peer);
        return theirs && is_lower ? own : theirs;
      },
      allocator_);
  board_.send_unique_id(peer, own);
}

cudaStream_t Connections::stream_of(const PeerMessage& message) const {
  return find(message.peer)->streams[direction_of(message)].get();
}

void Connections::enqueue(const std::vector<PeerMessage>& messages) {
  RINGCOMM_CHECK(ncclGroupStart());
  for (const PeerMessage& m : messages) {
    const Pair& pair = *find(m.peer);
    const ncclComm_t comm = pair.comms->get()[direction_of(m)];
    const cudaStream_t stream = pair.streams[direction_of(m)].get();
    const int peer = m.peer > group_.rank ? 1 : 0;  // in the pair
    if (m.is_send) {
      RINGCOMM_CHECK(ncclSend(m.data, m.nbytes, ncclUint8, peer, comm, stream));
    } else {
      RINGCOMM_CHECK(ncclRecv(m.data, m.nbytes, ncclUint8, peer, comm, stream));
    }
  }
  RINGCOMM_CHECK(ncclGroupEnd());
}

const Connections::Pair* Connections::find(int peer) const {
  const auto it = pairs_.find(peer);
  return it == pairs_.end() || !it->second.comms ? nullptr : &it->second;
}

Connections::Direction Connections::direction_of(const PeerMessage& message) const {
  return message.is_send == (group_.rank < message.peer) ? kUp : kDown;
}

bool Connections::all_connected() const {
  return std::all_of(pairs_.begin(), pairs_.end(),
                     [](const auto& pair) { return pair.second.comms != nullptr; });
}

void Connections::set_channels(std::unique_ptr<Comms> channels) {
  channels_ = std::move(channels);
  publish();
}

void Connections::publish() {
  std::lock_guard lock(mutex_);
  in_use_.clear();
  const auto add = [this](const Comms& comms) {
    in_use_.insert(in_use_.end(), comms.get().begin(), comms.get().end());
  };
  for (const auto& [peer, pair] : pairs_) {
    if (pair.comms) add(*pair.comms);
  }
  if (channels_) add(*channels_);
}

std::vector<int> Connections::partners() const {
  std::vector<int> ranks;
  if (channels_) {
    ranks.resize(group_.world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
  } else {
    for (const auto& [peer, pair] : pairs_) ranks.push_back(peer);
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

// Both ranks of a pair destroy it in the order of the pairs, and the channels behind them. Pairs
// that are not connected yet have never been used.
void Connections::end(void (Comms::*how)()) {
  {
    std::lock_guard lock(mutex_);
    in_use_.clear();
  }
  for (auto& [peer, pair] : pairs_) {
    pair.setup.reset();
    if (pair.comms) ((*pair.comms).*how)();
  }
  if (channels_) ((*channels_).*how)();
}

}  // namespace ringcomm::nccl
