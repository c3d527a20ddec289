#include "hosts/remote_mailbox.h"

#include <algorithm>

#include "hosts/streams.h"
#include "shm/group.h"

namespace ringcomm::hosts {

LinkedMailbox::~LinkedMailbox() {
  for (const auto& [peer, link] : peers_) {
    for (links::Request& request : link->sending) links_.cancel(request);
    for (links::Request& request : link->receiving) links_.cancel(request);
    links_.cancel(link->send_request);
    links_.cancel(link->receive_request);
  }
}

void LinkedMailbox::open(int peer) {
  if (peers_.contains(peer)) return;
  group_.segment().make_mail_box(group_.rank, peer);
  group_.segment().make_mail_box(peer, group_.rank);
  const auto link = peers_.emplace(peer, std::make_unique<PeerLink>()).first;
  receive_ack(peer, *link->second);
  take_slots(peer, *link->second);
}

bool LinkedMailbox::step() {
  bool moved = false;
  for (const auto& [peer, link] : peers_) {
    moved |= receive_ack(peer, *link);
    moved |= take_slots(peer, *link);
    send_slots(peer, *link);
    send_ack(peer, *link);
  }
  return moved;
}

bool LinkedMailbox::is_empty() const {
  return std::ranges::all_of(peers_, [&](const auto& item) {
    const auto& [peer, link] = item;
    const MailEdge& edge = group_.segment().mail_edge(group_.rank, peer);
    return link->sent == edge.posted.load(std::memory_order_acquire) &&
           link->last_sent == ack_for(peer);
  });
}

void LinkedMailbox::send_slots(int peer, PeerLink& link) {
  Segment& segment = group_.segment();
  const std::uint64_t posted =
      segment.mail_edge(group_.rank, peer).posted.load(std::memory_order_acquire);
  for (; link.sent < posted; ++link.sent) {
    links::Request& request = link.sending[link.sent % kMailSlots];
    if (request.pending()) return;
    const MailSlot& slot = segment.mail_slot(group_.rank, peer, link.sent);
    const std::size_t nbytes = std::min(slot.nbytes, group_.geometry().mail_slot_nbytes);
    links_.send(peer, {kMessages, link.sent % kNumbers},
                {reinterpret_cast<const std::byte*>(&slot), sizeof(slot) + nbytes}, request);
  }
}

bool LinkedMailbox::take_slots(int peer, PeerLink& link) {
  Segment& segment = group_.segment();
  MailEdge& edge = segment.mail_edge(peer, group_.rank);
  bool moved = false;
  while (link.came < link.expected && link.receiving[link.came % kMailSlots].done()) {
    edge.posted.store(++link.came, std::memory_order_release);
    moved = true;
  }
  if (link.came >= link.last_received.posted) {
    edge.ended.store(link.last_received.ended, std::memory_order_release);
  }
  const std::uint64_t taken = edge.taken.load(std::memory_order_acquire);
  for (; link.expected < taken + kMailSlots; ++link.expected) {
    MailSlot& slot = segment.mail_slot(peer, group_.rank, link.expected);
    links_.recv(
        peer, {kMessages, link.expected % kNumbers},
        {reinterpret_cast<std::byte*>(&slot), sizeof(slot) + group_.geometry().mail_slot_nbytes},
        link.receiving[link.expected % kMailSlots]);
  }
  return moved;
}

LinkedMailbox::Ack LinkedMailbox::ack_for(int peer) const {
  const MailEdge& from = group_.segment().mail_edge(peer, group_.rank);
  const MailEdge& to = group_.segment().mail_edge(group_.rank, peer);
  Ack ack{};
  ack.refused = from.refused.load(std::memory_order_acquire);
  ack.taken = from.taken.load(std::memory_order_acquire);
  ack.wanted_count = from.wanted_count;
  ack.wanted_users = from.wanted_users;
  ack.wanted_dtype = from.wanted_dtype;
  ack.wanted_none = from.wanted_none;
  if (to.refused.load(std::memory_order_acquire) != 0) {
    ack.ended = to.ended.load(std::memory_order_acquire);
    ack.posted = to.posted.load(std::memory_order_acquire);
  }
  return ack;
}

void LinkedMailbox::send_ack(int peer, PeerLink& link) {
  if (link.send_request.pending()) return;
  const Ack ack = ack_for(peer);
  if (ack == link.last_sent) return;
  link.sending_ack = ack;
  links_.send(peer, {kAcks, link.acks_sent % kNumbers},
              std::as_bytes(std::span(&link.sending_ack, 1)), link.send_request);
  ++link.acks_sent;
  link.last_sent = ack;
}

bool LinkedMailbox::receive_ack(int peer, PeerLink& link) {
  const bool is_awaited = link.acks_awaited > link.acks_received;
  if (is_awaited && !link.receive_request.done()) return false;
  if (is_awaited) take_ack(peer, link);
  links_.recv(peer, {kAcks, link.acks_awaited % kNumbers},
              std::as_writable_bytes(std::span(&link.receiving_ack, 1)), link.receive_request);
  ++link.acks_awaited;
  return is_awaited;
}

void LinkedMailbox::take_ack(int peer, PeerLink& link) {
  link.last_received = link.receiving_ack;
  ++link.acks_received;
  MailEdge& edge = group_.segment().mail_edge(group_.rank, peer);
  edge.wanted_count = link.last_received.wanted_count;
  edge.wanted_users = link.last_received.wanted_users;
  edge.wanted_dtype = link.last_received.wanted_dtype;
  edge.wanted_none = link.last_received.wanted_none;
  edge.refused.store(link.last_received.refused, std::memory_order_release);
  edge.taken.store(link.last_received.taken, std::memory_order_release);
}

}  // namespace ringcomm::hosts
