// Which messages will never be done: those past their deadline, whose peer is gone, or whose group
// is broken.
#include <chrono>
#include <utility>

#include "shm/mail.h"

namespace ringcomm::shm {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};

}  // namespace

// Null: there is still hope.
std::exception_ptr Mail::why_hopeless(const Message& message, Clock::time_point now) {
  const std::string who = "rank " + std::to_string(group_.rank) + " in " + describe(message);
  try {
    group_.check(describe(message));
  } catch (const Error&) {
    return std::current_exception();
  }
  std::string how;
  if (message.peer != kAnySource && message.peer != group_.rank &&
      group_.gone(message.peer, &how)) {
    return make_error(ErrorKind::kPeerDied, who + " after " +
                                                describe_seconds(message.deadline.waited()) +
                                                ": the peer will not answer, " + how);
  }
  if (now - message.deadline.start <= message.deadline.timeout) return nullptr;
  std::string text = who + " Timed out after " + describe_seconds(message.deadline.waited());
  if (message.peer != kAnySource) {
    text += ", waiting for " + group_.describe_peer(message.peer);
  }
  // Half a message cannot be taken back: what follows on this edge would be misread.
  if (message.under_way) return std::make_exception_ptr(group_.fail(ErrorKind::kTimeout, text));
  return make_error(ErrorKind::kTimeout, text);
}

// What the peer sent before it went still counts.
bool Mail::has_unread(const Message& message) {
  if (message.kind == Message::Kind::kSend || message.peer == kAnySource) return false;
  const MailEdge& edge = group_.segment().mail_edge(message.peer, group_.rank);
  return edge.posted.load(std::memory_order_acquire) != edge.taken.load();
}

void Mail::expire(Done& done) {
  const Clock::time_point now = Clock::now();
  look_next_ = now + kLookEvery;
  auto expire_in = [&](auto& queue) {
    for (auto it = queue.begin(); it != queue.end();) {
      const std::shared_ptr<Message> message = *it;
      const std::exception_ptr error = has_unread(*message) ? nullptr : why_hopeless(*message, now);
      if (!error) {
        ++it;
        continue;
      }
      it = queue.erase(it);
      finish(message, error, done);
    }
  };
  for (auto& queue : sends_) expire_in(queue);
  expire_in(recvs_);
  for (Arriving& arriving : arriving_) {
    std::shared_ptr<Message>& recv =
        arriving.early != nullptr ? arriving.early->claimed_by : arriving.into;
    if (!recv || has_unread(*recv)) continue;
    if (const std::exception_ptr error = why_hopeless(*recv, now)) {
      finish(std::exchange(recv, nullptr), error, done);
      arriving.discard = true;
    }
  }
}

}  // namespace ringcomm::shm
