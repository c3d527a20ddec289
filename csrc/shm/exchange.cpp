#include "shm/exchange.h"

#include <algorithm>
#include <cstring>

#include "core/chunks.h"
#include "core/policy.h"

namespace ringcomm::shm {
namespace {

// What it takes to leave a call to another thread.
constexpr std::chrono::microseconds kSoon{10};

}  // namespace

std::byte* Exchange::begin(Call& call, const Deadline& deadline) {
  if (group_.broken()) group_.check(describe(call, group_.members));
  if (owes_wait_) {
    await_announcements(deadline);
    owes_wait_ = false;
    end();
  }
  group_.use(Area::kAnnouncements);
  call.sequence = sequence_ = announced_ + 1;
  raises_ = false;
  payload_at_ = kBehind;
  return announcement(group_.rank).payload();
}

// There is room for many payloads, so that what is written does not touch the one before it, which
// others may still read.
std::byte* Exchange::room(std::size_t payload_nbytes) {
  const std::size_t most = group_.geometry().payloads_nbytes;
  if (!goes_in_rotation(payload_nbytes, group_.shares_cores()) || most == 0) {
    return announcement(group_.rank).payload();
  }
  group_.use(Area::kPayloads);
  payload_at_ = static_cast<std::uint32_t>(rotation_.take(round_up(payload_nbytes, kLine), most));
  return group_.segment().payloads(group_.rank) + payload_at_;
}

const std::byte* Exchange::payload_of(int rank) {
  Announcement& theirs = announcement(rank);
  const std::uint32_t at = read_once(theirs.payload_at);
  if (at == kBehind) return theirs.payload();
  group_.segment().fault_in(Area::kPayloads, rank);
  // In damaged memory this may be any number.
  const std::size_t last = group_.geometry().payloads_nbytes;
  return group_.segment().payloads(rank) + std::min<std::size_t>(at, last);
}

void Exchange::announce(const Call& call, std::size_t payload_nbytes, PayloadKind payload_kind) {
  Announcement& mine = announcement(group_.rank);
  mine.call = own_ = call;
  mine.digest = digest_ = digest_of(call);
  mine.payload_nbytes = static_cast<std::uint32_t>(payload_nbytes);
  mine.payload_at = payload_at_;
  mine.payload_kind = payload_kind;
  waited_ = {};
  transfer_began_.reset();
  mine.sequence.store(sequence_, std::memory_order_release);
  announced_ = sequence_;
  group_.note_made();
  group_.ring();
}

bool Exchange::may_refuse() {
  if (!owes_wait_) return true;
  for (int r = 0; r < group_.world_size; ++r) {
    if (!announced(r)) return false;
  }
  return true;
}

void Exchange::refuse(const std::string& reason, const Deadline& deadline) {
  Call call;
  call.refused = 1;
  auto* text = reinterpret_cast<char*>(begin(call, deadline));
  call.count = cut_at_character(reason, group_.geometry().eager_nbytes).size();
  std::memcpy(text, reason.data(), call.count);
  announce(call, call.count);
  owes_wait_ = true;
}

void Exchange::await_announcements(const Deadline& deadline) {
  RemoteHosts* const hosts = group_.remote_hosts();
  Backoff idle(group_, deadline);
  std::optional<Clock::time_point> since;  // a rank that comes last does not look at the clock
  const auto note_waited = [&] {
    if (since) waited_ += Clock::now() - *since;
  };
  const auto pause = [&] {
    if (!since) since = Clock::now();
    if (is_impatient_ && Clock::now() - *since > kSoon) {
      note_waited();
      throw NotYet();
    }
    idle.pause([&] {
      WaitInfo blocked{{}, describe_numbered(own_, group_.members)};
      for (int peer = 0; peer < group_.world_size; ++peer) {
        if (!announced(peer)) blocked.peers.push_back(peer);
      }
      blocked.in_memory = hosts == nullptr || hosts->forwards_after(blocked.peers);
      return blocked;
    });
  };
  const auto step = [&] {
    if (hosts != nullptr) hosts->forward_announcements();
  };
  step();
  for (int r = 0; r < group_.world_size; ++r) {
    for (; !announced(r); step()) pause();
  }
  note_waited();
  if (hosts == nullptr) return;
  for (; !hosts->has_forwarded(sequence_); step()) pause();
}

void Exchange::await_all(const Deadline& deadline) {
  await_announcements(deadline);
  for (int r = 0; r < group_.world_size; ++r) {
    if (announcement(r).digest != digest_) mismatch();
  }
}

bool Exchange::any_publishes(PayloadKind what) {
  for (int r = 0; r < group_.world_size; ++r) {
    if (payload_kind(r) == what) return true;
  }
  return false;
}

// Empty: no rank's arguments were refused.
std::string Exchange::refusals() {
  std::string text;
  for (int r = 0; r < group_.world_size; ++r) {
    const Call call = call_of(r);
    if (!is_valid(call)) throw damaged(r);
    if (!call.refused) continue;
    const std::size_t length = std::min<std::size_t>(call.count, group_.geometry().eager_nbytes);
    text += (text.empty() ? "" : "; ") + group_.members.name(r) + "'s arguments were refused: " +
            valid_utf8(std::string(reinterpret_cast<const char*>(payload_of(r)), length));
  }
  return text;
}

void Exchange::mismatch() {
  std::string text = group_.members.name(group_.rank) + " in ";
  const std::string refused = refusals();
  if (refused.empty()) {
    std::vector<std::optional<Call>> calls;
    for (int r = 0; r < group_.world_size; ++r) {
      const Call& call = calls.emplace_back(call_of(r)).value();
      const bool agrees = announcement(r).digest == digest_;
      if (!is_valid(call) || call.matches(own_) != agrees) throw damaged(r);
    }
    text += "collective #" + std::to_string(sequence_) +
            ": the ranks disagree: " + describe_mismatch(calls, group_.members);
  } else {
    text += describe_numbered(own_, group_.members) + ": " + refused;
  }
  end(/*raises=*/true);
  throw Error(ErrorKind::kMismatch, text + ". Nothing was sent.");
}

Error Exchange::damaged(int rank) {
  return group_.fail(
      ErrorKind::kSystem,
      group_.members.name(group_.rank) + " in " + describe_numbered(own_, group_.members) +
          ": the shared memory of the group is damaged: the announcement of " +
          group_.members.name(rank) + " holds a call that no rank of ringcomm writes");
}

void Exchange::end(bool raises) {
  ended_ = sequence_;
  raises_ = raises;
  RankState& own = group_.segment().state(group_.rank);
  nbytes_ += own_.refused ? 0 : own_.count * element_size(own_.dtype);
  own.nbytes.store(nbytes_, std::memory_order_relaxed);
  own.completed.store(sequence_, std::memory_order_relaxed);
  if (raises || own_.refused) return;
  CollectiveTimes& times = own.times[static_cast<std::size_t>(own_.collective)];
  times.waited.add(waited_);
  if (transfer_began_) times.transferred.add(Clock::now() - *transfer_began_);
}

}  // namespace ringcomm::shm
