#include "shm/mail_ferry.h"

#include <algorithm>

#include "shm/group.h"
#include "shm/streams.h"

namespace ringcomm::shm {

MailFerry::~MailFerry() {
  links::Engine& links = *group_.links();
  for (const auto& [peer, crossing] : crossings_) {
    for (links::Request& request : crossing->sending) links.cancel(request);
    for (links::Request& request : crossing->receiving) links.cancel(request);
    links.cancel(crossing->telling_request);
    links.cancel(crossing->hearing_request);
  }
}

void MailFerry::open(int peer) {
  if (is_open(peer)) return;
  group_.segment().make_mail_box(group_.rank, peer);
  group_.segment().make_mail_box(peer, group_.rank);
  const auto crossing = crossings_.emplace(peer, std::make_unique<Crossing>()).first;
  hear(peer, *crossing->second);
  take_slots(peer, *crossing->second);
}

bool MailFerry::step() {
  bool moved = false;
  for (const auto& [peer, crossing] : crossings_) {
    moved |= hear(peer, *crossing);
    moved |= take_slots(peer, *crossing);
    send_slots(peer, *crossing);
    tell(peer, *crossing);
  }
  return moved;
}

bool MailFerry::is_empty() const {
  return std::ranges::all_of(crossings_, [&](const auto& item) {
    const auto& [peer, crossing] = item;
    const MailEdge& edge = group_.segment().mail_edge(group_.rank, peer);
    return crossing->sent == edge.posted.load(std::memory_order_acquire) &&
           crossing->told == note_for(peer);
  });
}

void MailFerry::send_slots(int peer, Crossing& crossing) {
  Segment& segment = group_.segment();
  const std::uint64_t posted =
      segment.mail_edge(group_.rank, peer).posted.load(std::memory_order_acquire);
  for (; crossing.sent < posted; ++crossing.sent) {
    links::Request& request = crossing.sending[crossing.sent % kMailSlots];
    if (request.pending()) return;
    const MailSlot& slot = segment.mail_slot(group_.rank, peer, crossing.sent);
    const std::size_t nbytes = std::min(slot.nbytes, group_.geometry().mail_slot_nbytes);
    group_.links()->send(peer, {kMessages, crossing.sent % kNumbers},
                         {reinterpret_cast<const std::byte*>(&slot), sizeof(slot) + nbytes},
                         request);
  }
}

bool MailFerry::take_slots(int peer, Crossing& crossing) {
  Segment& segment = group_.segment();
  MailEdge& edge = segment.mail_edge(peer, group_.rank);
  bool moved = false;
  while (crossing.came < crossing.expected &&
         crossing.receiving[crossing.came % kMailSlots].done()) {
    edge.posted.store(++crossing.came, std::memory_order_release);
    moved = true;
  }
  if (crossing.came >= crossing.heard.posted) {
    edge.ended.store(crossing.heard.ended, std::memory_order_release);
  }
  const std::uint64_t taken = edge.taken.load(std::memory_order_acquire);
  for (; crossing.expected < taken + kMailSlots; ++crossing.expected) {
    MailSlot& slot = segment.mail_slot(peer, group_.rank, crossing.expected);
    group_.links()->recv(
        peer, {kMessages, crossing.expected % kNumbers},
        {reinterpret_cast<std::byte*>(&slot), sizeof(slot) + group_.geometry().mail_slot_nbytes},
        crossing.receiving[crossing.expected % kMailSlots]);
  }
  return moved;
}

MailFerry::Note MailFerry::note_for(int peer) const {
  const MailEdge& from = group_.segment().mail_edge(peer, group_.rank);
  const MailEdge& to = group_.segment().mail_edge(group_.rank, peer);
  Note note{};
  note.refused = from.refused.load(std::memory_order_acquire);
  note.taken = from.taken.load(std::memory_order_acquire);
  note.wanted_count = from.wanted_count;
  note.wanted_users = from.wanted_users;
  note.wanted_dtype = from.wanted_dtype;
  note.wanted_none = from.wanted_none;
  if (to.refused.load(std::memory_order_acquire) != 0) {
    note.ended = to.ended.load(std::memory_order_acquire);
    note.posted = to.posted.load(std::memory_order_acquire);
  }
  return note;
}

void MailFerry::tell(int peer, Crossing& crossing) {
  if (crossing.telling_request.pending()) return;
  const Note note = note_for(peer);
  if (note == crossing.told) return;
  crossing.telling = note;
  group_.links()->send(peer, {kNotes, crossing.notes_sent % kNumbers},
                       std::as_bytes(std::span(&crossing.telling, 1)), crossing.telling_request);
  ++crossing.notes_sent;
  crossing.told = note;
}

bool MailFerry::hear(int peer, Crossing& crossing) {
  const bool is_awaited = crossing.notes_awaited > crossing.notes_heard;
  if (is_awaited && !crossing.hearing_request.done()) return false;
  if (is_awaited) take_note(peer, crossing);
  group_.links()->recv(peer, {kNotes, crossing.notes_awaited % kNumbers},
                       std::as_writable_bytes(std::span(&crossing.hearing, 1)),
                       crossing.hearing_request);
  ++crossing.notes_awaited;
  return is_awaited;
}

void MailFerry::take_note(int peer, Crossing& crossing) {
  crossing.heard = crossing.hearing;
  ++crossing.notes_heard;
  MailEdge& edge = group_.segment().mail_edge(group_.rank, peer);
  edge.wanted_count = crossing.heard.wanted_count;
  edge.wanted_users = crossing.heard.wanted_users;
  edge.wanted_dtype = crossing.heard.wanted_dtype;
  edge.wanted_none = crossing.heard.wanted_none;
  edge.refused.store(crossing.heard.refused, std::memory_order_release);
  edge.taken.store(crossing.heard.taken, std::memory_order_release);
}

}  // namespace ringcomm::shm
