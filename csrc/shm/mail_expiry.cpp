// Which messages will never be done: those past their deadline, whose peer is gone, or whose group
// is broken.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "shm/mail.h"

namespace ringcomm::shm {
namespace {

constexpr int kMostNamed = 3;  // messages, in an error

}  // namespace

// Null: there is still hope.
std::exception_ptr Mail::why_hopeless(const Message& message, Clock::time_point now) {
  const std::string who =
      group_.members.name(group_.rank) + " in " + describe(message, group_.members);
  try {
    group_.check(describe(message, group_.members));
  } catch (const Error&) {
    return std::current_exception();
  }
  const auto died = [&](const std::string& why) {
    return make_error(ErrorKind::kPeerDied, who + " after " +
                                                describe_seconds(message.deadline.waited()) + ": " +
                                                why + unreceived(message));
  };
  std::string how;
  if (message.peer == kAnySource) {
    if (const std::string why = why_nobody_sends(); !why.empty()) return died(why);
  } else if (message.peer != group_.rank &&
             (group_.gone(message.peer, &how) || group_.has_unmade(message.peer, &how))) {
    return died("the peer will not answer, " + how);
  }
  if (now - message.deadline.start <= message.deadline.timeout) return nullptr;
  std::string text = who + ": Timed out after " + describe_seconds(message.deadline.waited());
  if (message.peer != kAnySource) {
    text += ", waiting for " + group_.describe_peer(message.peer);
  }
  text += unreceived(message);
  // Half a message cannot be taken back: what follows on this edge would be misread.
  if (message.under_way) return std::make_exception_ptr(group_.fail(ErrorKind::kTimeout, text));
  return make_error(ErrorKind::kTimeout, text);
}

// Why a receive from any source is without hope: a rank that may have been about to send has died,
// or all have left. Empty: it is not.
std::string Mail::why_nobody_sends() {
  std::vector<int> present;
  for (int peer = 0; peer < group_.world_size; ++peer) {
    if (peer != group_.rank && !has_left(peer)) present.push_back(peer);
  }
  if (present.empty()) return "all other ranks have closed the group";
  for (std::size_t looks = std::min(kPeersPerLook, present.size()); looks > 0; --looks) {
    const int peer = present[++looked_at_ % present.size()];
    std::string how;
    if (group_.gone(peer, &how) && !has_left(peer)) {
      return group_.members.name(peer) + ", which may have been the sender, will not send, " + how;
    }
  }
  return "";
}

// The messages that a receive could have had under another tag: mostly the tag is a mistake.
std::string Mail::unreceived(const Message& recv) const {
  if (recv.kind != Message::Kind::kRecv) return "";
  std::string named;
  int count = 0;
  for (const Early& early : early_) {
    if (early.claimed_by || !early.refused.empty()) continue;
    if (recv.peer != kAnySource && recv.peer != early.source) continue;
    if (++count > kMostNamed) continue;
    const std::uint64_t elements = early.nbytes / element_size(early.dtype);
    named += count == 1 ? "" : ", ";
    named += "tag=" + std::to_string(early.tag) +
             " (count=" + std::to_string(users_count(early.users, elements)) +
             ", dtype=" + name(ElementType(early.dtype, early.users)) + ") from " +
             group_.members.name(early.source);
  }
  if (count == 0) return "";
  if (count > kMostNamed) named += " and " + std::to_string(count - kMostNamed) + " more";
  return ". Sent with another tag, and not received yet: " + named;
}

bool Mail::has_unread(int from) {
  if (damaged_ || from == group_.rank || !has_box(from)) return false;
  const MailEdge& edge = group_.segment().mail_edge(from, group_.rank);
  return edge.posted.load(std::memory_order_acquire) != incoming_[from].taken;
}

// What a peer sent before it went still counts.
bool Mail::has_unread(const Message& message) {
  if (message.kind == Message::Kind::kSend) return false;
  if (message.peer != kAnySource) return has_unread(message.peer);
  for (int peer = 0; peer < group_.world_size; ++peer) {
    if (has_unread(peer)) return true;
  }
  return false;
}

// Looks at the mail again once the peer is found gone: it may have come between the two.
std::exception_ptr Mail::why_over(const Message& message, Clock::time_point now) {
  if (has_unread(message)) return nullptr;
  const std::exception_ptr error = why_hopeless(message, now);
  return error && !has_unread(message) ? error : nullptr;
}

void Mail::drop(Arriving& message) {
  early_.remove_if([&](const Early& early) { return &early == message.early; });
  message = {};
}

// For those who look at the group from outside (shm/view.h).
void Mail::tell_oldest(Clock::time_point now) {
  const Message* oldest = nullptr;
  const auto consider = [&](const std::shared_ptr<Message>& message) {
    if (!message || !message->refused.empty()) return;
    if (now - message->deadline.start < kLookEvery) return;
    if (!oldest || message->deadline.start < oldest->deadline.start) oldest = message.get();
  };
  for (const Outgoing& outgoing : outgoing_) {
    if (!outgoing.queue.empty()) consider(outgoing.queue.front());
  }
  if (!recvs_.empty()) consider(recvs_.front());
  for (const Incoming& incoming : incoming_) consider(incoming.message.into);
  if (oldest == told_) return;
  told_ = oldest;
  RankState& own = group_.segment().state(group_.rank);
  own.mail_since.store(0, std::memory_order_release);
  if (oldest == nullptr) return;
  own.mail.assign(describe(*oldest, group_.members));
  own.mail_peer.store(oldest->peer, std::memory_order_relaxed);
  own.mail_since.store(oldest->deadline.start.time_since_epoch().count(),
                       std::memory_order_release);
}

void Mail::expire(Done& done) {
  const Clock::time_point now = Clock::now();
  look_next_ = now + kLookEvery;
  tell_oldest(now);
  auto expire_in = [&](auto& queue) {
    for (auto it = queue.begin(); it != queue.end();) {
      const std::shared_ptr<Message> message = *it;
      const std::exception_ptr error = why_over(*message, now);
      if (!error) {
        ++it;
        continue;
      }
      it = queue.erase(it);
      finish(message, error, done);
    }
  };
  for (Outgoing& outgoing : outgoing_) expire_in(outgoing.queue);
  expire_in(recvs_);
  for (int peer = 0; peer < group_.world_size; ++peer) {
    Arriving& arriving = incoming_[peer].message;
    std::shared_ptr<Message>& recv =
        arriving.early != nullptr ? arriving.early->claimed_by : arriving.into;
    if (recv) {
      const std::exception_ptr error = why_over(*recv, now);
      if (!error) continue;
      finish(std::exchange(recv, nullptr), error, done);
      arriving.discard = true;
    }
    // Nobody waits for it; is the rest to come?
    std::string how;
    if (arriving.any() && (damaged_ || (group_.gone(peer, &how) && !has_unread(peer)))) {
      drop(arriving);
    }
  }
}

}  // namespace ringcomm::shm
