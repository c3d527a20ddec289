#include "hosts/status_message.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ringcomm::hosts {
namespace {

struct Header {
  FailureStatus failure;
  std::uint32_t dump_request, num_ranks, num_greetings, num_calls;
};

// The first of them, which `bytes` hold no more then.
template <typename T>
std::vector<T> take(std::size_t number, std::span<const std::byte>& bytes) {
  if (bytes.size() / sizeof(T) < number) throw std::invalid_argument("no end");
  std::vector<T> items(number);
  if (number > 0) std::memcpy(static_cast<void*>(items.data()), bytes.data(), number * sizeof(T));
  bytes = bytes.subspan(number * sizeof(T));
  return items;
}

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

// How long ago a time is, in nanoseconds of this host's clock; 0 stands for none.
std::int64_t ago(std::int64_t time) {
  return time == 0 ? 0 : std::max<std::int64_t>(now() - time, 1);
}
std::int64_t back_then(std::int64_t ago) { return ago == 0 ? 0 : now() - ago; }

// What is released is read before what stands behind it.
RankStatus word_of(RankState& state, int rank) {
  constexpr auto kAcquire = std::memory_order_acquire;
  RankStatus word{};
  word.rank = rank;
  word.urgent = {.closed = state.liveness.closed.load(kAcquire),
                 .ended = state.liveness.ended.load(kAcquire),
                 .barrier = state.barrier.arrived.load(kAcquire),
                 .rejected_barrier = state.barrier.given_up.load(kAcquire),
                 .device_unique_ids = state.device.unique_ids.load(kAcquire),
                 .device_joining = state.device.joining.load(kAcquire),
                 .device_closing = state.device.closing.load(kAcquire),
                 .dump_listens = state.dump.listens.load(kAcquire),
                 .dump_answered = state.dump.answered.load(kAcquire)};
  word.process = state.process;
  word.waits_for = state.wait.peer.load(kAcquire);
  word.waits_since = ago(state.wait.since.load(kAcquire));
  word.completed = state.completed.load(kAcquire);
  word.nbytes = state.nbytes.load(kAcquire);
  word.held = state.held.load(kAcquire);
  word.device_enqueued = state.device.enqueued.load(kAcquire);
  word.device_completed = state.device.completed.load(kAcquire);
  word.device_held = state.device.held.load(kAcquire);
  if (word.urgent.device_joining != 0) word.device_settings = state.device.settings;
  return word;
}

void mirror(const RankStatus& word, RankState& state) {
  constexpr auto kRelease = std::memory_order_release;
  if (state.joined.load(std::memory_order_relaxed) == 0) {  // what never changes
    state.process = word.process;
    state.process.pid_namespace = 0;  // its number means nothing here
  }
  state.wait.since.store(back_then(word.waits_since), kRelease);
  state.wait.peer.store(word.waits_for, kRelease);
  state.completed.store(word.completed, kRelease);
  state.nbytes.store(word.nbytes, kRelease);
  state.held.store(word.held, kRelease);
  if (word.urgent.device_joining != 0 && state.device.joining.load() == 0) {
    state.device.settings = word.device_settings;
  }
  state.device.enqueued.store(word.device_enqueued, kRelease);
  state.device.completed.store(word.device_completed, kRelease);
  state.device.held.store(word.device_held, kRelease);
  state.liveness.ended.store(word.urgent.ended, kRelease);
  state.liveness.closed.store(word.urgent.closed, kRelease);
  state.barrier.arrived.store(word.urgent.barrier, kRelease);
  state.barrier.given_up.store(word.urgent.rejected_barrier, kRelease);
  state.device.joining.store(word.urgent.device_joining, kRelease);
  state.device.closing.store(word.urgent.device_closing, kRelease);
  state.dump.answered.store(word.urgent.dump_answered, kRelease);
  state.dump.listens.store(word.urgent.dump_listens, kRelease);
  state.joined.store(1, kRelease);
}

}  // namespace

std::size_t StatusMessage::most_nbytes(std::size_t num_ranks) {
  return sizeof(Header) + num_ranks * sizeof(RankStatus) +
         kMostOfDevices * (sizeof(UniqueIdStatus) + sizeof(CallStatus));
}

StatusMessage StatusMessage::of(Group& group, const std::vector<int>& ranks) {
  StatusMessage word{};
  const GroupHeader& header = group.segment().header();
  // Read before the failure that is the reason for it.
  word.dump_request = header.dump_request.load(std::memory_order_acquire);
  if (header.failed.load(std::memory_order_acquire) == 2) {
    word.failure.failed = 1;
    word.failure.kind = header.kind;
    word.failure.reporter = header.reporter;
    word.failure.text = header.text;
  }
  for (const int rank : ranks) word.ranks.push_back(word_of(group.segment().state(rank), rank));
  return word;
}

StatusMessage StatusMessage::read(std::span<const std::byte> bytes, const Group& group, int host) {
  Header header;
  if (bytes.size() < sizeof(header)) throw std::invalid_argument("no beginning");
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  StatusMessage word{.failure = header.failure,
                     .dump_request = header.dump_request,
                     .ranks = take<RankStatus>(header.num_ranks, bytes),
                     .unique_ids = take<UniqueIdStatus>(header.num_greetings, bytes),
                     .calls = take<CallStatus>(header.num_calls, bytes)};
  const auto is_there = [&](int rank) { return rank >= 0 && rank < group.world_size; };
  const auto is_theirs = [&](int rank) { return group.placement().is_on(host, rank); };
  const bool is_right = is_there(word.failure.reporter) &&
                        std::ranges::all_of(word.ranks, is_theirs, &RankStatus::rank) &&
                        std::ranges::all_of(word.unique_ids, is_theirs, &UniqueIdStatus::from) &&
                        std::ranges::all_of(word.unique_ids, is_there, &UniqueIdStatus::to) &&
                        std::ranges::all_of(word.calls, is_theirs, &CallStatus::rank);
  if (!is_right) throw std::invalid_argument("ranks that are not there");
  return word;
}

std::vector<std::byte> StatusMessage::written() const {
  const Header header{failure, dump_request, static_cast<std::uint32_t>(ranks.size()),
                      static_cast<std::uint32_t>(unique_ids.size()),
                      static_cast<std::uint32_t>(calls.size())};
  std::vector<std::byte> bytes(sizeof(header) + ranks.size() * sizeof(RankStatus) +
                               unique_ids.size() * sizeof(UniqueIdStatus) +
                               calls.size() * sizeof(CallStatus));
  std::byte* at = bytes.data();
  const auto add = [&](const auto& items) {
    const std::span part = std::as_bytes(std::span(items));
    at = std::ranges::copy(part, at).out;
  };
  add(std::span(&header, 1));
  add(ranks);
  add(unique_ids);
  add(calls);
  return bytes;
}

bool StatusMessage::is_as_urgent_as(const StatusMessage& other) const {
  return failure.failed == other.failure.failed && dump_request == other.dump_request &&
         std::ranges::equal(ranks, other.ranks, {}, &RankStatus::urgent, &RankStatus::urgent);
}

void StatusMessage::mirror(Group& group) const {
  for (const UniqueIdStatus& word : unique_ids) {
    group.board().write(word.from, word.to, word.unique_id);
  }
  for (const CallStatus& word : calls) group.board().write(word.rank, word.call);
  for (const RankStatus& rank : ranks) hosts::mirror(rank, group.segment().state(rank.rank));
  if (failure.failed != 0) {
    group.adopt_failure(failure.reporter, failure.kind, failure.text.str());
  }
  group.adopt_dump_request(dump_request);
}

}  // namespace ringcomm::hosts
