// Messages in and out of the mail boxes, slot by slot. What a peer writes there is read once, and
// checked before it is used: a size or an offset that it cannot have written breaks the group.
//
// Then the messages that will never be done: those past their deadline, whose peer is gone, or
// whose group is broken.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "reduce/publish.h"
#include "shm/layout.h"
#include "shm/mail.h"

namespace ringcomm::shm {
namespace {

const std::string kRefused = "'s arguments were refused: ";
constexpr int kMostNamed = 3;  // messages, in an error

// What a peer has written.
std::string text_of(const std::byte* text, std::size_t nbytes) {
  return printable_utf8(std::string(reinterpret_cast<const char*>(text), nbytes));
}

}  // namespace

bool Mail::push(int peer, Done& done) {
  if (damaged_) return false;
  bool moved = false;
  MailEdge& edge = group_.segment().mail_edge(group_.rank, peer);
  const std::size_t capacity = group_.geometry().mail_slot_nbytes;
  Outgoing& outgoing = outgoing_[peer];
  const auto end = [&](std::exception_ptr error) {
    edge.ended.store(outgoing.number++, std::memory_order_release);
    const std::shared_ptr<Message> message = std::move(outgoing.queue.front());
    outgoing.queue.pop_front();
    finish(message, error, done);
  };
  while (!outgoing.queue.empty()) {
    Message& message = *outgoing.queue.front();
    if (message.under_way && edge.refused.load(std::memory_order_acquire) == outgoing.number) {
      end(refusal(message, edge));
      moved = true;
      continue;
    }
    const std::uint64_t unread = outgoing.posted - edge.taken.load(std::memory_order_acquire);
    if (unread > kMailSlots) {
      damaged(group_.rank, peer, "a number of slots read");
      break;
    }
    if (unread == kMailSlots) break;
    MailSlot& slot = group_.segment().mail_slot(group_.rank, peer, outgoing.posted);
    const std::size_t nbytes = std::min(capacity, message.nbytes() - message.moved);
    slot.message = outgoing.number;
    slot.message_nbytes = message.nbytes();
    slot.offset = message.moved;
    slot.nbytes = nbytes;
    slot.tag = message.tag;
    slot.users = message.users;
    slot.dtype = message.dtype;
    slot.refused = message.refused.empty() ? 0 : 1;
    if (nbytes > 0) publish(slot.data(), message.data + message.moved, nbytes, outgoing.stores);
    message.moved += nbytes;
    message.under_way = true;
    edge.posted.store(++outgoing.posted, std::memory_order_release);
    ring(peer);
    moved = true;
    if (message.moved == message.nbytes()) end(nullptr);
  }
  return moved;
}

bool Mail::pull(int peer, Done& done) {
  if (damaged_ || !has_box(peer)) return false;
  bool moved = false;
  MailEdge& edge = group_.segment().mail_edge(peer, group_.rank);
  Incoming& incoming = incoming_[peer];
  for (;;) {
    const std::uint64_t ended = edge.ended.load(std::memory_order_acquire);
    const std::uint64_t unread = edge.posted.load(std::memory_order_acquire) - incoming.taken;
    if (unread == 0) {
      if (incoming.message.discard && ended >= incoming.number) incoming.message = {};
      break;
    }
    MailSlot& slot = group_.segment().mail_slot(peer, group_.rank, incoming.taken);
    const MailSlot header = read_once(slot);
    if (incoming.message.discard && header.message != incoming.number) incoming.message = {};
    if (unread > kMailSlots || !is_next(incoming, header)) {
      damaged(peer, group_.rank, "a message");
      break;
    }
    if (!incoming.message.any() && !accept(peer, header, slot.data(), done)) break;
    take(peer, header, slot.data(), done);
    edge.taken.store(++incoming.taken, std::memory_order_release);
    ring(peer);
    moved = true;
  }
  return moved;
}

// Whether a sender may have written this slot behind the last one.
bool Mail::is_next(const Incoming& incoming, const MailSlot& header) const {
  const Arriving& message = incoming.message;
  const bool begins = !message.any();
  const std::size_t offset = begins ? 0 : message.moved;
  const std::size_t whole = begins ? header.message_nbytes : message.nbytes;
  return header.message == incoming.number + (begins ? 1 : 0) && header.message_nbytes == whole &&
         header.offset == offset &&
         header.nbytes == std::min(group_.geometry().mail_slot_nbytes, whole - offset) &&
         is_valid(header.dtype) && header.users.is_valid() &&
         (header.refused == 0 || (header.refused == 1 && header.nbytes == whole && whole > 0));
}

// Decides where the message that begins with slot `first` goes. False: it stays where it is,
// because no receive waits for a message of this peer.
bool Mail::accept(int peer, const MailSlot& first, const std::byte* data, Done& done) {
  Incoming& incoming = incoming_[peer];
  const std::string refused = first.refused != 0 ? text_of(data, first.nbytes) : "";
  bool awaited = false;
  for (auto it = recvs_.begin(); it != recvs_.end(); ++it) {
    const std::shared_ptr<Message> recv = *it;
    if (recv->peer != peer && recv->peer != kAnySource) continue;
    awaited = true;
    if (recv->tag != first.tag) continue;
    const std::exception_ptr error =
        check_fits(*recv, peer, {first.dtype, first.users}, first.message_nbytes, refused);
    recvs_.erase(it);
    incoming.number = first.message;
    incoming.message = {.nbytes = first.message_nbytes};
    if (error) {
      notify_sender(peer, *recv);
      incoming.message.discard = true;
      finish(recv, error, done);
    } else {
      recv->peer = peer;
      recv->under_way = true;
      incoming.message.into = recv;
    }
    return true;
  }
  if (!awaited) return false;
  early_.push_back({.source = peer,
                    .tag = first.tag,
                    .dtype = first.dtype,
                    .users = first.users,
                    .nbytes = first.message_nbytes,
                    .refused = refused,
                    .data = {}});
  incoming.number = first.message;
  incoming.message = {.early = &early_.back(), .nbytes = first.message_nbytes};
  return true;
}

void Mail::take(int peer, const MailSlot& header, const std::byte* data, Done& done) {
  Arriving& arriving = incoming_[peer].message;
  if (arriving.into) {
    if (header.nbytes > 0) std::memcpy(arriving.into->data + arriving.moved, data, header.nbytes);
  } else if (arriving.early != nullptr) {
    arriving.early->data.insert(arriving.early->data.end(), data, data + header.nbytes);
  }
  arriving.moved += header.nbytes;
  if (arriving.into) arriving.into->moved = arriving.moved;
  if (arriving.moved < arriving.nbytes) return;

  const Arriving complete = std::exchange(arriving, {});
  if (complete.into) finish(complete.into, nullptr, done);
  if (complete.early == nullptr) return;
  complete.early->complete = true;
  if (complete.early->claimed_by) hand_over(*complete.early, complete.early->claimed_by, done);
}

// The sender of the message that arrives now learns what this rank wants in its place.
void Mail::notify_sender(int peer, const Message& recv) {
  MailEdge& edge = group_.segment().mail_edge(peer, group_.rank);
  edge.wanted_count = recv.count;
  edge.wanted_users = recv.users;
  edge.wanted_dtype = recv.dtype;
  edge.wanted_none.assign(recv.refused);
  edge.refused.store(incoming_[peer].number, std::memory_order_release);
  ring(peer);
}

std::exception_ptr Mail::refusal(const Message& send, const MailEdge& edge) {
  const std::uint64_t count = read_once(edge.wanted_count);
  const ElementType type(read_once(edge.wanted_dtype), read_once(edge.wanted_users));
  if (!is_valid(type.dtype) || !type.users.is_valid()) {
    return damaged(group_.rank, send.peer, "an answer");
  }
  const std::string none = edge.wanted_none.str();
  const std::string why =
      none.empty() ? " receives count=" + std::to_string(users_count(type.users, count)) +
                         ", dtype=" + name(type)
                   : kRefused + none;
  return make_error(ErrorKind::kMismatch,
                    group_.members.name(group_.rank) + " in " + describe(send, group_.members) +
                        ": " + group_.members.name(send.peer) + why + ". The message was dropped.");
}

std::exception_ptr Mail::check_fits(const Message& recv, int source, const ElementType& type,
                                    std::size_t nbytes, const std::string& refused) {
  const bool alike =
      type.dtype == recv.dtype && type.users == recv.users && nbytes == recv.nbytes();
  if (alike && recv.refused.empty() && refused.empty()) return nullptr;
  const std::uint64_t count = users_count(type.users, nbytes / element_size(type.dtype));
  const std::string why = refused.empty()
                              ? " sent count=" + std::to_string(count) + ", dtype=" + name(type) +
                                    ". The message was dropped."
                              : kRefused + refused + ". Nothing was sent.";
  return make_error(ErrorKind::kMismatch, group_.members.name(group_.rank) + " in " +
                                              describe(recv, group_.members) + ": " +
                                              group_.members.name(source) + why);
}

// Breaks the group.
std::exception_ptr Mail::damaged(int from, int to, const char* what) {
  damaged_ = true;
  look_next_ = {};  // all that is pending ends
  return std::make_exception_ptr(group_.fail(
      ErrorKind::kSystem, group_.members.name(group_.rank) +
                              ": the shared memory of the group is damaged: the mail box of " +
                              group_.members.name(from) + " for " + group_.members.name(to) +
                              " holds " + what + " that no rank of ringcomm writes"));
}

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
    return make_error(ErrorKind::kPeerDied,
                      after(who, message.deadline) + ": " + why + unreceived(message));
  };
  std::string how;
  if (message.peer == kAnySource) {
    if (const std::string why = why_no_rank_sends(); !why.empty()) return died(why);
  } else if (message.peer != group_.rank &&
             (group_.gone(message.peer, &how) || group_.has_unmade(message.peer, &how))) {
    return died(will_not_answer(group_.members.name(message.peer), how));
  }
  if (!message.deadline.has_passed(now)) return nullptr;
  std::string text = timed_out(who, message.deadline);
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
std::string Mail::why_no_rank_sends() {
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

// Publishes the oldest message for a view of the group from outside (shm/view.h).
void Mail::publish_oldest(Clock::time_point now) {
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
  if (oldest == published_) return;
  published_ = oldest;
  RankState& own = group_.segment().state(group_.rank);
  own.mail.since.store(0, std::memory_order_release);
  if (oldest == nullptr) return;
  own.mail.message.assign(describe(*oldest, group_.members));
  own.mail.peer.store(oldest->peer, std::memory_order_relaxed);
  own.mail.since.store(oldest->deadline.start.time_since_epoch().count(),
                       std::memory_order_release);
}

void Mail::expire(Done& done) {
  const Clock::time_point now = Clock::now();
  look_next_ = now + kLookEvery;
  publish_oldest(now);
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
    // No receive waits for it; is the rest to come?
    std::string how;
    if (arriving.any() && (damaged_ || (group_.gone(peer, &how) && !has_unread(peer)))) {
      drop(arriving);
    }
  }
}

}  // namespace ringcomm::shm
