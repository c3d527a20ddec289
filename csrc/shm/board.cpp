#include "shm/board.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace ringcomm::shm {

// What is read while it is overwritten is noticed: whoever reads a new word also sees that the
// sequence has changed before it.
void Board::enqueue(const Call& call) {
  std::array<std::uint64_t, kCallWords> words{};
  std::memcpy(words.data(), &call, sizeof(call));
  DeviceCall& entry = group_.segment().device_call(group_.rank, call.sequence);
  entry.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kCallWords; ++i) {
    entry.words[i].store(words[i], std::memory_order_release);
  }
  entry.sequence.store(call.sequence, std::memory_order_release);
  group_.segment()
      .state(group_.rank)
      .device_enqueued.store(call.sequence, std::memory_order_release);
}

void Board::complete(std::uint64_t sequence) {
  group_.segment().state(group_.rank).device_completed.store(sequence, std::memory_order_release);
}

void Board::join(const Settings& settings) {
  RankState& state = group_.segment().state(group_.rank);
  if (state.device_joining.load(std::memory_order_relaxed) != 0) return;
  std::copy(settings.begin(), settings.end(), state.device_settings);
  state.device_joining.store(1, std::memory_order_release);
}

Board::Settings Board::settings_of(int rank) {
  Settings settings;
  std::copy_n(group_.segment().state(rank).device_settings, settings.size(), settings.begin());
  return settings;
}

std::vector<int> Board::not_joined() {
  std::vector<int> ranks;
  for (int r = 0; r < group_.world_size; ++r) {
    if (group_.segment().state(r).device_joining.load(std::memory_order_acquire) == 0) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

void Board::greet(int peer, const Greeting& greeting) {
  DeviceGreeting& entry = group_.segment().device_greeting(group_.rank, peer);
  std::memcpy(entry.data, greeting.data(), greeting.size());
  entry.ready.store(1, std::memory_order_release);
}

std::optional<Board::Greeting> Board::greeting(int from, int to) {
  const DeviceGreeting& entry = group_.segment().device_greeting(from, to);
  if (entry.ready.load(std::memory_order_acquire) == 0) return std::nullopt;
  Greeting greeting;
  std::memcpy(greeting.data(), entry.data, greeting.size());
  return greeting;
}

void Board::close(Closing how) {
  group_.segment()
      .state(group_.rank)
      .device_closing.store(static_cast<std::uint32_t>(how), std::memory_order_release);
}

Board::Closing Board::closing(int rank) {
  return static_cast<Closing>(
      group_.segment().state(rank).device_closing.load(std::memory_order_acquire));
}

Board::Closing Board::least_closed(const std::vector<int>& ranks) {
  Closing least = Closing::kHeld;
  for (const int r : ranks) least = std::min(least, closing(r));
  return least;
}

Board::Closing Board::most_closed(const std::vector<int>& ranks) {
  Closing most = Closing::kFree;
  for (const int r : ranks) most = std::max(most, closing(r));
  return most;
}

std::optional<Call> Board::find(int rank, std::uint64_t sequence) {
  DeviceCall& entry = group_.segment().device_call(rank, sequence);
  if (entry.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  std::array<std::uint64_t, kCallWords> words;
  for (std::size_t i = 0; i < kCallWords; ++i) {
    words[i] = entry.words[i].load(std::memory_order_acquire);
  }
  if (entry.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  Call call;
  std::memcpy(static_cast<void*>(&call), words.data(), sizeof(call));
  return call;
}

std::string Board::describe_mismatch(std::uint64_t sequence) {
  std::vector<std::optional<Call>> calls;
  for (int r = 0; r < group_.world_size; ++r) calls.push_back(find(r, sequence));
  const std::optional<Call>& own = calls[group_.rank];
  const bool differs = std::any_of(calls.begin(), calls.end(), [&](const auto& theirs) {
    return own && theirs && !theirs->matches(*own);
  });
  return differs ? ringcomm::describe_mismatch(calls) : "";
}

std::string Board::describe_awaited(std::uint64_t sequence) {
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
    details += std::string(details.empty() ? "" : "; ") + "rank " + std::to_string(r);
    if (group_.gone(r, &how)) {
      details += " (" + how + ")";
      continue;
    }
    details += " has enqueued #" + std::to_string(enqueued(r)) + " and completed #" +
               std::to_string(completed(r)) + " on its device";
  }
  return describe_ranks(awaited) + ": " + details;
}

}  // namespace ringcomm::shm
