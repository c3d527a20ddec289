#include "shm/device_board.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shm/group.h"

namespace ringcomm::shm {
namespace {

constexpr std::uint32_t kJoined = 1, kConnected = 2;

}  // namespace

DeviceBoard::DeviceBoard(Group& group) : ringcomm::DeviceBoard(group), group_(group) {}

void DeviceBoard::join(const Settings& settings) {
  RankState& state = group_.segment().state(group_.rank);
  if (state.device.joining.load(std::memory_order_relaxed) != 0) return;
  state.device.settings = settings;
  state.device.joining.store(kJoined, std::memory_order_release);
}

bool DeviceBoard::joined(int rank) {
  return group_.segment().state(rank).device.joining.load(std::memory_order_acquire) != 0;
}

DeviceBoard::Settings DeviceBoard::settings_of(int rank) {
  return group_.segment().state(rank).device.settings;
}

void DeviceBoard::publish_connected() {
  RankState& state = group_.segment().state(group_.rank);
  state.device.joining.store(kConnected, std::memory_order_release);
}

bool DeviceBoard::is_connected(int rank) {
  return group_.segment().state(rank).device.joining.load(std::memory_order_acquire) >= kConnected;
}

void DeviceBoard::send_unique_id(int peer, const UniqueId& unique_id) {
  group_.use(Area::kDevice);
  write(group_.segment().device_unique_id(group_.rank, peer), unique_id);
  group_.segment().state(group_.rank).device.unique_ids.fetch_add(1, std::memory_order_release);
}

void DeviceBoard::write(DeviceUniqueId& entry, const UniqueId& unique_id) {
  if (entry.ready.load(std::memory_order_acquire) != 0) return;
  entry.data = unique_id;
  entry.ready.store(1, std::memory_order_release);
}

void DeviceBoard::mirror(int from, int to, const UniqueId& unique_id) {
  group_.segment().make(Area::kDevice, from);
  write(group_.segment().device_unique_id(from, to), unique_id);
}

std::optional<DeviceBoard::UniqueId> DeviceBoard::unique_id(int from, int to) {
  if (!group_.segment().made(from, Area::kDevice)) return std::nullopt;
  return read(group_.segment().device_unique_id(from, to));
}

std::optional<DeviceBoard::UniqueId> DeviceBoard::read(const DeviceUniqueId& entry) {
  if (entry.ready.load(std::memory_order_acquire) == 0) return std::nullopt;
  return entry.data;
}

void DeviceBoard::publish_ipc_handle(const UniqueId& ipc_handle) {
  group_.use(Area::kDevice);
  write(group_.segment().ipc_handle(group_.rank), ipc_handle);
}

std::optional<DeviceBoard::UniqueId> DeviceBoard::ipc_handle_of(int rank) {
  if (!group_.segment().made(rank, Area::kDevice)) return std::nullopt;
  return read(group_.segment().ipc_handle(rank));
}

void DeviceBoard::set_access(Access reach) {
  std::atomic<Access>& access = group_.segment().state(group_.rank).device.access;
  Access known = access.load(std::memory_order_relaxed);
  while (known < reach && !access.compare_exchange_weak(known, reach)) {
  }
}

DeviceBoard::Access DeviceBoard::access_of(int rank) {
  return std::min(group_.segment().state(rank).device.access.load(std::memory_order_acquire),
                  Access::kReleased);
}

void DeviceBoard::publish_held(std::size_t nbytes) {
  group_.segment().state(group_.rank).device.held.store(nbytes, std::memory_order_relaxed);
}

void DeviceBoard::enqueue(const Call& call) {
  group_.use(Area::kDevice);
  write(group_.rank, call);
  group_.segment()
      .state(group_.rank)
      .device.enqueued.store(call.sequence, std::memory_order_release);
}

void DeviceBoard::mirror(int rank, const Call& call) {
  group_.segment().make(Area::kDevice, rank);
  write(rank, call);
}

// What is read while it is overwritten is noticed: a thread that reads a new word also sees that
// the sequence has changed before it.
void DeviceBoard::write(int rank, const Call& call) {
  std::array<std::uint64_t, kCallWords> words{};
  std::memcpy(words.data(), &call, sizeof(call));
  DeviceCall& entry = group_.segment().device_call(rank, call.sequence);
  entry.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kCallWords; ++i) {
    entry.words[i].store(words[i], std::memory_order_release);
  }
  entry.sequence.store(call.sequence, std::memory_order_release);
}

void DeviceBoard::complete(std::uint64_t sequence) {
  group_.segment().state(group_.rank).device.completed.store(sequence, std::memory_order_release);
}

std::uint64_t DeviceBoard::enqueued(int rank) {
  return group_.segment().state(rank).device.enqueued.load(std::memory_order_acquire);
}

std::uint64_t DeviceBoard::completed(int rank) {
  return group_.segment().state(rank).device.completed.load(std::memory_order_acquire);
}

std::optional<Call> DeviceBoard::find(int rank, std::uint64_t sequence) {
  if (!group_.segment().made(rank, Area::kDevice)) return std::nullopt;
  DeviceCall& entry = group_.segment().device_call(rank, sequence);
  if (entry.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  std::array<std::uint64_t, kCallWords> words;
  for (std::size_t i = 0; i < kCallWords; ++i) {
    words[i] = entry.words[i].load(std::memory_order_acquire);
  }
  if (entry.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  Call call;
  std::memcpy(static_cast<void*>(&call), words.data(), sizeof(call));
  return is_valid(call) ? std::optional(call) : std::nullopt;
}

void DeviceBoard::close(Closing how) {
  group_.segment().state(group_.rank).device.closing.store(how, std::memory_order_release);
}

DeviceBoard::Closing DeviceBoard::closing(int rank) {
  return std::min(group_.segment().state(rank).device.closing.load(std::memory_order_acquire),
                  Closing::kHeld);
}

}  // namespace ringcomm::shm
