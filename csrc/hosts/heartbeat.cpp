#include "hosts/heartbeat.h"

#include <algorithm>
#include <stdexcept>

#include "core/thread.h"
#include "hosts/streams.h"
#include "shm/group.h"

namespace ringcomm::hosts {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{5};
constexpr milliseconds kSpeakEvery{500};
// When it leaves, it waits so long for its last message, and all that was sent before, to be taken.
constexpr milliseconds kLastWord{1000};
constexpr milliseconds kNap{1};

}  // namespace

Heartbeat::Heartbeat(Group& group, links::Engine& links, AnnouncementForwarder& forwarder, Empty)
    : group_(group),
      links_(links),
      forwarder_(forwarder),
      ranks_(group.placement().ranks_on(group.host())) {}

Heartbeat::Heartbeat(Group& group, links::Engine& links, AnnouncementForwarder& forwarder)
    : Heartbeat(group, links, forwarder, Empty()) {
  for (const int leader : group.other_leaders()) {
    const std::size_t num_ranks =
        group.placement().ranks_on(group.placement().host_of[leader]).size();
    auto& other = *others_.emplace_back(std::make_unique<Other>(leader));
    other.room = StatusMessage::most_nbytes(num_ranks);
    group.liveness().mark_alive(leader);
    for (Incoming& incoming : other.incoming) {
      incoming.bytes.reset(new std::byte[other.room]);
      post(other, incoming);
    }
  }
  thread_ = start_thread([this] { run(); });
}

void Heartbeat::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (leaves_) return;
    leaves_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
    at_the_end([this] { send_last_message(); });
  }
  for (const auto& other : others_) {
    links_.cancel(other->sending);
    for (Incoming& incoming : other->incoming) links_.cancel(incoming.request);
  }
}

void Heartbeat::send_last_message() {
  const Clock::time_point start = Clock::now();
  int naps = 0;  // on a busy machine time passes without them
  const auto until = [&](auto&& is_done) {
    while (!is_done() && (Clock::now() - start < kLastWord || naps * kNap < kLastWord)) {
      links_.sleep(kNap);
      links_.progress();
      ++naps;
    }
  };
  until([&] { return speak(true); });
  until([&] { return has_spoken() && links_.flushed(); });
}

void Heartbeat::run() {
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

void Heartbeat::tick() {
  const Clock::time_point began = Clock::now();
  links_.progress();
  mark_others_suspended(began);
  look_at_processes();
  listen();
  look_at_connections();
  group_.liveness().mark_alive(group_.rank, began);
  forwarder_.hurry();
  const Clock::time_point now = Clock::now();
  if (speak(now >= speak_next_) && now >= speak_next_) speak_next_ = now + kSpeakEvery;
}

// While this process stood still it did not listen: of that time no more than a part counts as the
// others' silence. Some does, as a process that never gets its core in time is to notice, too.
void Heartbeat::mark_others_suspended(Clock::time_point now) {
  const Clock::duration missed = now - last_tick_ - group_.heartbeat_timeout() / 4;
  for (const auto& other : others_) {
    if (last_tick_ == Clock::time_point{}) {
      group_.liveness().mark_alive(other->leader);
    } else if (missed > Clock::duration::zero()) {
      group_.liveness().mark_suspended(other->leader, missed);
    }
  }
  last_tick_ = now;
}

void Heartbeat::look_at_processes() {
  if (Clock::now() < look_next_) return;
  look_next_ = Clock::now() + kLookEvery;
  for (const int rank : ranks_) {
    RankState& state = group_.segment().state(rank);
    const bool is_over = state.liveness.closed.load(std::memory_order_acquire) != Closed::kNo
                             ? !state.process.runs()
                             : group_.segment().has_ended(rank);
    if (state.liveness.ended.load(std::memory_order_relaxed) == 0 && is_over) {
      state.liveness.ended.store(1, std::memory_order_release);
    }
    // The status messages between hosts do not carry it.
    std::string how;
    if (group_.has_unmade(rank, &how) && !group_.broken()) {
      group_.fail(ErrorKind::kSystem, will_not_answer(group_.members.name(rank), how));
    }
  }
}

// The other ranks of this host may have no connection to those leaders, which report for their
// hosts.
void Heartbeat::look_at_connections() {
  for (const auto& other : others_) {
    if (!links_.failure(other->leader).empty()) group_.liveness().mark_dead(other->leader);
  }
}

void Heartbeat::post(Other& other, Incoming& incoming) {
  links_.recv(other.leader, {kStatus, other.posted % kNumbers}, {incoming.bytes.get(), other.room},
              incoming.request);
  ++other.posted;
}

void Heartbeat::listen() {
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

bool Heartbeat::take(std::span<const std::byte> bytes, int leader) {
  try {
    StatusMessage::read(bytes, group_, group_.placement().host_of[leader]).mirror(group_);
  } catch (const std::invalid_argument& error) {
    group_.fail(ErrorKind::kSystem, group_.members.name(group_.rank) + ": what " +
                                        group_.members.name(leader) +
                                        " says of its host's ranks has " + error.what());
    return false;
  }
  group_.liveness().mark_alive(leader);
  group_.segment().state(leader).liveness.has_spoken.store(1, std::memory_order_release);
  return true;
}

bool Heartbeat::speak(bool all) {
  StatusMessage word = StatusMessage::of(group_, ranks_);
  if (!all && word.is_as_urgent_as(said_)) return true;
  add_device_status(word);
  bool to_all = true;
  for (const auto& other : others_) {
    if (other->sending.pending()) {
      to_all = false;
      continue;
    }
    other->out = word.written();
    links_.send(other->leader, {kStatus, other->sent % kNumbers}, other->out, other->sending);
    ++other->sent;
  }
  if (!to_all) return false;
  note_sent(word);
  said_ = std::move(word);
  return true;
}

void Heartbeat::add_device_status(StatusMessage& word) {
  for (const int rank : ranks_) {
    DeviceArea* const area = group_.device_area(rank);
    if (area == nullptr) continue;
    for (int to = 0; to < group_.world_size; ++to) {
      const DeviceUniqueId& entry = area->unique_id(to);
      if (word.unique_ids.size() == StatusMessage::kMostOfDevices) break;
      if (entry.ready.load(std::memory_order_acquire) == 0) continue;
      if (!sent_unique_ids_.contains({rank, to})) word.unique_ids.push_back({rank, to, entry.data});
    }
    const std::uint64_t enqueued = group_.board().enqueued(rank);
    const std::uint64_t kept = enqueued > kDeviceCalls ? enqueued - kDeviceCalls : 0;
    for (std::uint64_t s = std::max(sent_calls_[rank], kept) + 1; s <= enqueued; ++s) {
      if (word.calls.size() == StatusMessage::kMostOfDevices) break;
      if (const auto call = group_.board().find(rank, s)) word.calls.push_back({rank, *call});
    }
  }
}

void Heartbeat::note_sent(const StatusMessage& word) {
  for (const UniqueIdStatus& unique_id : word.unique_ids) {
    sent_unique_ids_.insert({unique_id.from, unique_id.to});
  }
  for (const CallStatus& call : word.calls) sent_calls_[call.rank] = call.call.sequence;
}

bool Heartbeat::has_spoken() const {
  for (const auto& other : others_) {
    if (other->sending.pending()) return false;
  }
  return true;
}

}  // namespace ringcomm::hosts
