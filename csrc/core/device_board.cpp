#include "core/device_board.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ringcomm {
namespace {

constexpr std::uint32_t kJoined = 1, kConnected = 2;

}  // namespace

void DeviceBoard::join(const Settings& settings) {
  DeviceState& state = own_state();
  if (state.joining.load(std::memory_order_relaxed) != 0) return;
  state.settings = settings;
  state.joining.store(kJoined, std::memory_order_release);
}

bool DeviceBoard::joined(int rank) {
  return state(rank).joining.load(std::memory_order_acquire) != 0;
}

DeviceBoard::Settings DeviceBoard::settings_of(int rank) { return state(rank).settings; }

void DeviceBoard::publish_connected() {
  own_state().joining.store(kConnected, std::memory_order_release);
}

bool DeviceBoard::is_connected(int rank) {
  return state(rank).joining.load(std::memory_order_acquire) >= kConnected;
}

void DeviceBoard::send_unique_id(int peer, const UniqueId& unique_id) {
  write(group_.rank, peer, unique_id);
  own_state().unique_ids.fetch_add(1, std::memory_order_release);
}

void DeviceBoard::publish_ipc_handle(const UniqueId& ipc_handle) {
  write(group_.rank, group_.world_size, ipc_handle);
}

std::optional<DeviceBoard::UniqueId> DeviceBoard::ipc_handle_of(int rank) {
  return unique_id(rank, group_.world_size);
}

void DeviceBoard::write(int from, int to, const UniqueId& unique_id) {
  DeviceUniqueId& entry = group_.make_device_area(from).unique_id(to);
  if (entry.ready.load(std::memory_order_acquire) != 0) return;
  entry.data = unique_id;
  entry.ready.store(1, std::memory_order_release);
}

std::optional<DeviceBoard::UniqueId> DeviceBoard::unique_id(int from, int to) {
  DeviceArea* const area = group_.device_area(from);
  if (area == nullptr) return std::nullopt;
  const DeviceUniqueId& entry = area->unique_id(to);
  if (entry.ready.load(std::memory_order_acquire) == 0) return std::nullopt;
  return entry.data;
}

void DeviceBoard::set_access(Access reach) {
  std::atomic<Access>& access = own_state().access;
  Access known = access.load(std::memory_order_relaxed);
  while (known < reach && !access.compare_exchange_weak(known, reach)) {
  }
}

DeviceBoard::Access DeviceBoard::access_of(int rank) {
  return std::min(state(rank).access.load(std::memory_order_acquire), Access::kReleased);
}

void DeviceBoard::publish_held(std::size_t nbytes) {
  own_state().held.store(nbytes, std::memory_order_relaxed);
}

void DeviceBoard::enqueue(const Call& call) {
  write(group_.rank, call);
  own_state().enqueued.store(call.sequence, std::memory_order_release);
}

// What is read while it is overwritten is noticed: a thread that reads a new word also sees that
// the sequence has changed before it.
void DeviceBoard::write(int rank, const Call& call) {
  std::array<std::uint64_t, kCallWords> words{};
  std::memcpy(words.data(), &call, sizeof(call));
  DeviceCall& entry = group_.make_device_area(rank).calls[call.sequence % kDeviceCalls];
  entry.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kCallWords; ++i) {
    entry.words[i].store(words[i], std::memory_order_release);
  }
  entry.sequence.store(call.sequence, std::memory_order_release);
}

void DeviceBoard::complete(std::uint64_t sequence) {
  own_state().completed.store(sequence, std::memory_order_release);
}

std::uint64_t DeviceBoard::enqueued(int rank) {
  return state(rank).enqueued.load(std::memory_order_acquire);
}

std::uint64_t DeviceBoard::completed(int rank) {
  return state(rank).completed.load(std::memory_order_acquire);
}

std::optional<Call> DeviceBoard::find(int rank, std::uint64_t sequence) {
  DeviceArea* const area = group_.device_area(rank);
  if (area == nullptr) return std::nullopt;
  DeviceCall& entry = area->calls[sequence % kDeviceCalls];
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

void DeviceBoard::close(Closing how) { own_state().closing.store(how, std::memory_order_release); }

DeviceBoard::Closing DeviceBoard::closing(int rank) {
  return std::min(state(rank).closing.load(std::memory_order_acquire), Closing::kHeld);
}

std::vector<int> DeviceBoard::not_joined() {
  std::vector<int> ranks;
  for (int r = 0; r < group_.world_size; ++r) {
    if (!joined(r)) ranks.push_back(r);
  }
  return ranks;
}

DeviceBoard::Closing DeviceBoard::least_closed(const std::vector<int>& ranks) {
  Closing least = Closing::kHeld;
  for (const int r : ranks) least = std::min(least, closing(r));
  return least;
}

DeviceBoard::Closing DeviceBoard::most_closed(const std::vector<int>& ranks) {
  Closing most = Closing::kFree;
  for (const int r : ranks) most = std::max(most, closing(r));
  return most;
}

std::string DeviceBoard::describe_mismatch(std::uint64_t sequence) {
  std::vector<std::optional<Call>> calls;
  for (int r = 0; r < group_.world_size; ++r) calls.push_back(find(r, sequence));
  const std::optional<Call>& own = calls[group_.rank];
  const bool differs = std::any_of(calls.begin(), calls.end(), [&](const auto& theirs) {
    return own && theirs && !theirs->matches(*own);
  });
  return differs ? ringcomm::describe_mismatch(calls, group_.members) : "";
}

std::string DeviceBoard::describe_awaited(std::uint64_t sequence) {
  std::vector<int> absent, busy;
  std::string details;
  for (int r = 0; r < group_.world_size; ++r) {
    if (enqueued(r) < sequence) absent.push_back(r);
    if (completed(r) < sequence && r != group_.rank) busy.push_back(r);
  }
  const std::vector<int>& awaited = absent.empty() ? busy : absent;
  if (awaited.empty()) return "this rank's own device: all other ranks are done";
  for (const int r : awaited) {
    std::string how;
    details += std::string(details.empty() ? "" : "; ") + group_.members.name(r);
    if (group_.gone(r, &how)) {
      details += " (" + how + ")";
      continue;
    }
    details += " has enqueued #" + std::to_string(enqueued(r)) + " and completed #" +
               std::to_string(completed(r)) + " on its device";
  }
  return group_.members.names(awaited) + ": " + details;
}

}  // namespace ringcomm
