// Messages in and out of the mail boxes, slot by slot. What a peer writes there is read once, and
// checked before it is used: a size or an offset that it cannot have written breaks the group.
#include <algorithm>
#include <cstring>
#include <utility>

#include "reduce/publish.h"
#include "shm/mail.h"
#include "shm/read_once.h"

namespace ringcomm::shm {
namespace {

const std::string kRefused = "'s arguments were refused: ";

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
// because nobody waits for a message of this peer.
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
      tell_sender(peer, *recv);
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

// PayloadKind the sender of the message now arriving what it should have been.
void Mail::tell_sender(int peer, const Message& recv) {
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

}  // namespace ringcomm::shm
