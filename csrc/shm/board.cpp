#include "shm/board.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shm/group.h"

namespace ringcomm::shm {
namespace {

constexpr std::uint32_t kJoined = 1, kConnected = 2;

}  // namespace

Board::Board(Group& group) : ringcomm::Board(group), group_(group) {}

void Board::join(const Settings& settings) {
  RankState& state = group_.segment().state(group_.rank);
  if (state.device_joining.load(std::memory_order_relaxed) != 0) return;
  state.device_settings = settings;
  state.device_joining.store(kJoined, std::memory_order_release);
}

bool Board::joined(int rank) {
  return group_.segment().state(rank).device_joining.load(std::memory_order_acquire) != 0;
}

Board::Settings Board::settings_of(int rank) {
  return group_.segment().state(rank).device_settings;
}

void Board::tell_connected() {
  RankState& state = group_.segment().state(group_.rank);
  state.device_joining.store(kConnected, std::memory_order_release);
}

bool Board::is_connected(int rank) {
  return group_.segment().state(rank).device_joining.load(std::memory_order_acquire) >= kConnected;
}

void Board::greet(int peer, const Greeting& greeting) {
  group_.use(Area::kDevice);
  write(group_.segment().device_greeting(group_.rank, peer), greeting);
  group_.segment().state(group_.rank).device_greetings.fetch_add(1, std::memory_order_release);
}

void Board::write(DeviceGreeting& entry, const Greeting& greeting) {
  if (entry.ready.load(std::memory_order_acquire) != 0) return;
  entry.data = greeting;
  entry.ready.store(1, std::memory_order_release);
}

void Board::mirror(int from, int to, const Greeting& greeting) {
  group_.segment().make(Area::kDevice, from);
  write(group_.segment().device_greeting(from, to), greeting);
}

std::optional<Board::Greeting> Board::greeting(int from, int to) {
  if (!group_.segment().made(from, Area::kDevice)) return std::nullopt;
  return read(group_.segment().device_greeting(from, to));
}

std::optional<Board::Greeting> Board::read(const DeviceGreeting& entry) {
  if (entry.ready.load(std::memory_order_acquire) == 0) return std::nullopt;
  return entry.data;
}

void Board::show(const Greeting& card) {
  group_.use(Area::kDevice);
  write(group_.segment().device_card(group_.rank), card);
}

std::optional<Board::Greeting> Board::card_of(int rank) {
  if (!group_.segment().made(rank, Area::kDevice)) return std::nullopt;
  return read(group_.segment().device_card(rank));
}

void Board::tell_reach(Reach reach) {
  group_.segment().state(group_.rank).device_reach.store(reach, std::memory_order_release);
}

Board::Reach Board::reach_of(int rank) {
  return std::min(group_.segment().state(rank).device_reach.load(std::memory_order_acquire),
                  Reach::kLetGo);
}

void Board::enqueue(const Call& call) {
  group_.use(Area::kDevice);
  write(group_.rank, call);
  group_.segment()
      .state(group_.rank)
      .device_enqueued.store(call.sequence, std::memory_order_release);
}

void Board::mirror(int rank, const Call& call) {
  group_.segment().make(Area::kDevice, rank);
  write(rank, call);
}

// What is read while it is overwritten is noticed: whoever reads a new word also sees that the
// sequence has changed before it.
void Board::write(int rank, const Call& call) {
  std::array<std::uint64_t, kCallWords> words{};
  std::memcpy(words.data(), &call, sizeof(call));
  DeviceCall& entry = group_.segment().device_call(rank, call.sequence);
  entry.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kCallWords; ++i) {
    entry.words[i].store(words[i], std::memory_order_release);
  }
  entry.sequence.store(call.sequence, std::memory_order_release);
}

void Board::complete(std::uint64_t sequence) {
  group_.segment().state(group_.rank).device_completed.store(sequence, std::memory_order_release);
}

std::uint64_t Board::enqueued(int rank) {
  return group_.segment().state(rank).device_enqueued.load(std::memory_order_acquire);
}

std::uint64_t Board::completed(int rank) {
  return group_.segment().state(rank).device_completed.load(std::memory_order_acquire);
}

std::optional<Call> Board::find(int rank, std::uint64_t sequence) {
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

void Board::close(Closing how) {
  group_.segment().state(group_.rank).device_closing.store(how, std::memory_order_release);
}

Board::Closing Board::closing(int rank) {
  return std::min(group_.segment().state(rank).device_closing.load(std::memory_order_acquire),
                  Closing::kHeld);
}

}  // namespace ringcomm::shm
