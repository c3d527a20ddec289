#include "hosts/announcement_forwarder.h"

#include <algorithm>
#include <cstring>

#include "hosts/streams.h"
#include "shm/group.h"

namespace ringcomm::hosts {
namespace {

// A bundle is entries, each followed by its payload.
struct Entry {
  std::int32_t rank;
  std::uint32_t payload_nbytes;
  Call call;
};

std::size_t padded(std::size_t nbytes) { return (nbytes + 7) / 8 * 8; }

}  // namespace

AnnouncementForwarder::AnnouncementForwarder(Group& group, links::Engine& links, Empty)
    : group_(group), links_(links), ranks_(group.placement().ranks_on(group.host())) {}

AnnouncementForwarder::AnnouncementForwarder(Group& group, links::Engine& links)
    : AnnouncementForwarder(group, links, Empty()) {
  forwarded_.resize(ranks_.size());
  was_there_.resize(ranks_.size());
  const std::vector<int> leaders = group.other_leaders();
  for (Bundle& bundle : bundles_) {
    bundle.bytes.reset(new std::byte[most(ranks_.size())]);
    bundle.requests.reset(new links::Request[leaders.size()]);
  }
  for (const int leader : leaders) {
    const std::vector<int> ranks = group.placement().ranks_on(group.placement().host_of[leader]);
    for (const int rank : ranks) group.segment().make(Area::kAnnouncements, rank);
    auto& incoming =
        *incoming_.emplace_back(std::make_unique<Incoming>(leader, most(ranks.size())));
    for (std::uint64_t number = 0; number < kAhead; ++number) {
      incoming.places[number].bytes.reset(new std::byte[incoming.room]);
      post(incoming, number);
    }
  }
}

AnnouncementForwarder::~AnnouncementForwarder() {
  for (Bundle& bundle : bundles_) {
    for (std::size_t i = 0; i < incoming_.size(); ++i) links_.cancel(bundle.requests[i]);
  }
  for (const auto& incoming : incoming_) {
    for (Incoming::Place& place : incoming->places) links_.cancel(place.request);
  }
}

std::size_t AnnouncementForwarder::most(std::size_t num_ranks) const {
  return num_ranks * padded(sizeof(Entry) + group_.geometry().eager_nbytes);
}

void AnnouncementForwarder::step(bool hurry) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  receive();
  forward(hurry);
}

bool AnnouncementForwarder::has_sent(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  return *std::ranges::min_element(forwarded_) >= sequence;
}

bool AnnouncementForwarder::awaits_only(const std::vector<int>& ranks) {
  const auto is_local = [&](int rank) { return group_.is_local(rank); };
  if (ranks.empty() || !std::ranges::all_of(ranks, is_local)) return false;
  const std::lock_guard lock(mutex_);
  return std::ranges::none_of(bundles_, [&](const Bundle& bundle) {
    const std::span requests(bundle.requests.get(), incoming_.size());
    return std::ranges::any_of(requests, &links::Request::pending);
  });
}

bool AnnouncementForwarder::has_announced(std::size_t i) {
  Segment& segment = group_.segment();
  const std::uint64_t next = forwarded_[i] + 1;
  return segment.made(ranks_[i], Area::kAnnouncements) &&
         segment.announcement(ranks_[i], next).sequence.load(std::memory_order_acquire) == next;
}

void AnnouncementForwarder::forward(bool hurry) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const bool there = has_announced(i);
    if (there && (!hurry || was_there_[i])) which.push_back(i);
    if (hurry) was_there_[i] = there;
  }
  if (which.empty() || (!hurry && which.size() < ranks_.size())) return;
  const Bundle& next = bundles_[sent_ % kBundles];
  for (std::size_t h = 0; h < incoming_.size(); ++h) {
    if (next.requests[h].pending()) return;
  }
  send(which);
}

void AnnouncementForwarder::send(const std::vector<std::size_t>& which) {
  Bundle& bundle = bundles_[sent_ % kBundles];
  std::byte* at = bundle.bytes.get();
  for (const std::size_t i : which) {
    Announcement& announcement = group_.segment().announcement(ranks_[i], ++forwarded_[i]);
    Entry entry{ranks_[i], 0, announcement.call};
    entry.payload_nbytes = static_cast<std::uint32_t>(
        std::min<std::size_t>(announcement.payload_nbytes, group_.geometry().eager_nbytes));
    std::memcpy(at, &entry, sizeof(entry));
    std::memcpy(at + sizeof(entry), announcement.payload(), entry.payload_nbytes);
    at += padded(sizeof(entry) + entry.payload_nbytes);
    was_there_[i] = 0;
  }
  const std::span<const std::byte> bytes(bundle.bytes.get(), at);
  for (std::size_t h = 0; h < incoming_.size(); ++h) {
    links_.send(incoming_[h]->leader, {kAnnouncements, sent_ % kNumbers}, bytes,
                bundle.requests[h]);
  }
  ++sent_;
}

void AnnouncementForwarder::receive() {
  for (const auto& incoming : incoming_) {
    for (;;) {
      const Incoming::Place& place = incoming->places[incoming->number % kAhead];
      if (!place.request.done()) break;
      mirror(incoming->leader, {place.bytes.get(), place.request.nbytes});
      group_.ring();
      post(*incoming, incoming->number + kAhead);
      ++incoming->number;
    }
  }
}

void AnnouncementForwarder::post(Incoming& incoming, std::uint64_t number) {
  Incoming::Place& place = incoming.places[number % kAhead];
  links_.recv(incoming.leader, {kAnnouncements, number % kNumbers},
              {place.bytes.get(), incoming.room}, place.request);
}

void AnnouncementForwarder::mirror(int leader, std::span<const std::byte> bundle) {
  const int host = group_.placement().host_of[leader];
  const std::size_t nbytes = bundle.size();
  for (std::size_t at = 0; at < nbytes;) {
    Entry entry;
    const bool is_whole = at + sizeof(entry) <= nbytes;
    if (is_whole) std::memcpy(static_cast<void*>(&entry), bundle.data() + at, sizeof(entry));
    const bool is_right = is_whole && group_.placement().is_on(host, entry.rank) &&
                          entry.payload_nbytes <= group_.geometry().eager_nbytes &&
                          at + sizeof(entry) + entry.payload_nbytes <= nbytes;
    if (!is_right) {
      group_.fail(ErrorKind::kSystem,
                  group_.members.name(group_.rank) + ": what " + group_.members.name(leader) +
                      " sent of its host's calls is nothing that a rank of ringcomm sends");
      return;
    }
    Announcement& place = group_.segment().announcement(entry.rank, entry.call.sequence);
    place.call = entry.call;
    place.digest = digest_of(entry.call);
    place.payload_nbytes = entry.payload_nbytes;
    place.payload_at = kBehind;
    std::memcpy(place.payload(), bundle.data() + at + sizeof(entry), entry.payload_nbytes);
    place.sequence.store(entry.call.sequence, std::memory_order_release);
    at += padded(sizeof(entry) + entry.payload_nbytes);
  }
}

}  // namespace ringcomm::hosts
