#include "shm/sentinel.h"

#include <algorithm>
#include <stdexcept>

#include "core/thread.h"
#include "shm/group.h"
#include "shm/streams.h"

namespace ringcomm::shm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{5};
constexpr milliseconds kSpeakEvery{500};
// Leaving, it waits so long for its last word, and all that was sent before, to be taken.
constexpr milliseconds kLastWord{1000};
constexpr milliseconds kNap{1};

}  // namespace

Sentinel::Sentinel(Group& group, Relay& relay, Empty)
    : group_(group), relay_(relay), ranks_(group.placement().ranks_on(group.host())) {}

Sentinel::Sentinel(Group& group, Relay& relay) : Sentinel(group, relay, Empty()) {
  for (const int leader : group.other_leaders()) {
    const std::size_t num_ranks =
        group.placement().ranks_on(group.placement().host_of[leader]).size();
    auto& other = *others_.emplace_back(std::make_unique<Other>(leader));
    other.room = Word::most_nbytes(num_ranks);
    group.hear_of(leader);
    for (Incoming& incoming : other.incoming) {
      incoming.bytes.reset(new std::byte[other.room]);
      post(other, incoming);
    }
  }
  thread_ = start_thread([this] { run(); });
}

void Sentinel::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (leaves_) return;
    leaves_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
    at_the_end([this] { say_last_word(); });
  }
  for (const auto& other : others_) {
    group_.links()->cancel(other->sending);
    for (Incoming& incoming : other->incoming) group_.links()->cancel(incoming.request);
  }
}

void Sentinel::say_last_word() {
  const Clock::time_point start = Clock::now();
  int naps = 0;  // on a busy machine time passes without them
  const auto until = [&](auto&& is_done) {
    while (!is_done() && (Clock::now() - start < kLastWord || naps * kNap < kLastWord)) {
      group_.links()->sleep(kNap);
      group_.links()->progress();
      ++naps;
    }
  };
  until([&] { return speak(true); });
  until([&] { return has_spoken() && group_.links()->flushed(); });
}

void Sentinel::run() {
  std::unique_lock lock(mutex_);
  while (!leaves_) {
    lock.unlock();
    if (const std::exception_ptr error = error_of([&] { tick(); })) {
      group_.fail_with(error, [] { return std::string("listening to other hosts"); });
    }
    lock.lock();
    wake_.wait_for(lock, kTick, [&] { return leaves_; });
  }
}

void Sentinel::tick() {
  const Clock::time_point began = Clock::now();
  group_.links()->progress();
  excuse_others(began);
  look_at_processes();
  listen();
  look_at_connections();
  group_.hear_of(group_.rank, began);
  relay_.hurry();
  const Clock::time_point now = Clock::now();
  if (speak(now >= speak_next_) && now >= speak_next_) speak_next_ = now + kSpeakEvery;
}

// While this process stood still it did not listen: of that time no more than a part counts as the
// others' silence. Some does, as a process that never gets its core in time is to notice, too.
void Sentinel::excuse_others(Clock::time_point now) {
  const Clock::duration missed = now - last_tick_ - group_.silence() / 4;
  for (const auto& other : others_) {
    if (last_tick_ == Clock::time_point{}) {
      group_.hear_of(other->leader);
    } else if (missed > Clock::duration::zero()) {
      group_.excuse(other->leader, missed);
    }
  }
  last_tick_ = now;
}

void Sentinel::look_at_processes() {
  if (Clock::now() < look_next_) return;
  look_next_ = Clock::now() + kLookEvery;
  for (const int rank : ranks_) {
    RankState& state = group_.segment().state(rank);
    const bool is_over = state.closed.load(std::memory_order_acquire) != Closed::kNo
                             ? !state.process.runs()
                             : group_.segment().has_ended(rank);
    if (state.ended.load(std::memory_order_relaxed) == 0 && is_over) {
      state.ended.store(1, std::memory_order_release);
    }
    // The status messages between hosts do not carry it.
    std::string how;
    if (group_.has_unmade(rank, &how) && !group_.broken()) {
      group_.fail(ErrorKind::kSystem, group_.members.name(rank) + " will not answer, " + how);
    }
  }
}

// The other ranks of this host may have no connection to those leaders, who speak for their hosts.
void Sentinel::look_at_connections() {
  for (const auto& other : others_) {
    if (!group_.links()->failure(other->leader).empty()) group_.lose(other->leader);
  }
}

void Sentinel::post(Other& other, Incoming& incoming) {
  group_.links()->recv(other.leader, {kWords, other.posted % kNumbers},
                       {incoming.bytes.get(), other.room}, incoming.request);
  ++other.posted;
}

void Sentinel::listen() {
  for (const auto& other : others_) {
    for (;;) {
      Incoming& incoming = other->incoming[other->heard % kAhead];
      if (!incoming.request.done()) break;
      if (!take({incoming.bytes.get(), incoming.request.nbytes}, other->leader)) return;
      ++other->heard;
      post(*other, incoming);
    }
  }
}

bool Sentinel::take(std::span<const std::byte> bytes, int leader) {
  try {
    Word::read(bytes, group_, group_.placement().host_of[leader]).mirror(group_);
  } catch (const std::invalid_argument& error) {
    group_.fail(ErrorKind::kSystem, group_.members.name(group_.rank) + ": what " +
                                        group_.members.name(leader) +
                                        " says of its host's ranks has " + error.what());
    return false;
  }
  group_.hear_of(leader);
  group_.segment().state(leader).has_spoken.store(1, std::memory_order_release);
  return true;
}

bool Sentinel::speak(bool all) {
  Word word = Word::of(group_, ranks_);
  if (!all && word.is_as_urgent_as(said_)) return true;
  add_device_words(word);
  bool to_all = true;
  for (const auto& other : others_) {
    if (other->sending.pending()) {
      to_all = false;
      continue;
    }
    other->out = word.written();
    group_.links()->send(other->leader, {kWords, other->sent % kNumbers}, other->out,
                         other->sending);
    ++other->sent;
  }
  if (!to_all) return false;
  note_told(word);
  said_ = std::move(word);
  return true;
}

void Sentinel::add_device_words(Word& word) {
  for (const int rank : ranks_) {
    Segment& segment = group_.segment();
    if (!segment.made(rank, Area::kDevice)) continue;
    for (int to = 0; to < group_.world_size; ++to) {
      const DeviceGreeting& entry = segment.device_greeting(rank, to);
      if (word.greetings.size() == Word::kMostOfDevices) break;
      if (entry.ready.load(std::memory_order_acquire) == 0) continue;
      if (!told_greetings_.contains({rank, to})) word.greetings.push_back({rank, to, entry.data});
    }
    const std::uint64_t enqueued = group_.board().enqueued(rank);
    const std::uint64_t kept = enqueued > kDeviceCalls ? enqueued - kDeviceCalls : 0;
    for (std::uint64_t s = std::max(told_calls_[rank], kept) + 1; s <= enqueued; ++s) {
      if (word.calls.size() == Word::kMostOfDevices) break;
      if (const auto call = group_.board().find(rank, s)) word.calls.push_back({rank, *call});
    }
  }
}

void Sentinel::note_told(const Word& word) {
  for (const GreetingWord& greeting : word.greetings) {
    told_greetings_.insert({greeting.from, greeting.to});
  }
  for (const CallWord& call : word.calls) told_calls_[call.rank] = call.call.sequence;
}

bool Sentinel::has_spoken() const {
  for (const auto& other : others_) {
    if (other->sending.pending()) return false;
  }
  return true;
}

}  // namespace ringcomm::shm
