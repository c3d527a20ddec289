#include "core/flight_recorder.h"

#include <algorithm>

namespace ringcomm {
namespace {

FlightRecorder::Nanoseconds now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
}

}  // namespace

std::size_t FlightRecorder::add_group(std::string name, std::vector<std::uint64_t> global_ranks,
                                      int rank, Life life) {
  std::lock_guard lives_lock(lives_mutex_);
  std::lock_guard lock(mutex_);
  for (Record& record : records_) {
    if (record.group.name == name) record.replaced = true;
  }
  Group group;
  group.name = std::move(name);
  group.global_ranks = std::move(global_ranks);
  group.rank = rank;
  records_.push_back({std::move(group), {}, false});
  lives_.emplace(records_.size() - 1, std::move(life));
  return records_.size() - 1;
}

void FlightRecorder::end_group(std::size_t group) {
  std::lock_guard lives_lock(lives_mutex_);
  const auto life = lives_.extract(group);
  if (life.empty()) return;
  life.mapped().look();
  std::string description = life.mapped().description();
  std::lock_guard lock(mutex_);
  records_[group].group.description = std::move(description);
}

FlightRecorder::Entry& FlightRecorder::next_entry(Operation operation, const char* name,
                                                  const std::optional<MessageRecord>& message) {
  Entry& entry = entries_[num_created_ % entries_.size()];
  entry.inputs.clear();
  entry.outputs.clear();
  const Nanoseconds created = now();
  entry = {.id = num_created_,
           .group = operation.group,
           .name = name,
           .message = message,
           .timeout = operation.timeout,
           .inputs = std::move(entry.inputs),
           .outputs = std::move(entry.outputs),
           .created = created,
           .started = operation.starts_at_once ? created : 0,
           .frames = std::move(operation.frames)};
  return entry;
}

std::uint64_t* FlightRecorder::last_number(std::size_t group,
                                           const std::optional<MessageRecord>& message) {
  Record& record = records_[group];
  if (!message) return &record.group.num_created;
  const auto& [is_send, peer, tag] = *message;
  if (peer == kAnybody) return nullptr;
  const int rank = record.group.rank;
  return &record.messages[is_send ? Stream(rank, peer, tag) : Stream(peer, rank, tag)];
}

FlightRecorder::Entry* FlightRecorder::find(std::uint64_t id) {
  Entry& entry = entries_[id % entries_.size()];
  return entry.id == id ? &entry : nullptr;
}

void FlightRecorder::skip(std::size_t group, const std::optional<MessageRecord>& message) {
  std::lock_guard lock(mutex_);
  if (std::uint64_t* last = last_number(group, message)) ++*last;
}

void FlightRecorder::start(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  entry->started = now();
  if (entry->message) return;
  std::uint64_t& last = records_[entry->group].group.last_started;
  last = std::max(last, entry->sequence);
}

void FlightRecorder::complete(std::uint64_t id, int source) {
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  entry->completed = now();
  if (entry->started == 0) entry->started = entry->completed;
  entry->retired = true;
  if (entry->message) {
    if (entry->sequence != 0) return;
    entry->message->peer = source;
    if (std::uint64_t* last = last_number(entry->group, entry->message)) entry->sequence = ++*last;
    return;
  }
  Group& group = records_[entry->group].group;
  group.last_started = std::max(group.last_started, entry->sequence);
  group.last_completed = std::max(group.last_completed, entry->sequence);
}

void FlightRecorder::fail(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(id)) entry->retired = true;
}

void FlightRecorder::set_digest(std::uint64_t id, std::uint64_t digest) {
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  entry->has_digest = true;
  entry->digest = digest;
}

void FlightRecorder::withdraw(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  entry->id = kNoId;
  std::uint64_t* last = last_number(entry->group, entry->message);
  if (last != nullptr && *last == entry->sequence) --*last;
}

FlightRecorder::Snapshot FlightRecorder::snapshot() {
  std::lock_guard lives_lock(lives_mutex_);
  std::map<std::size_t, std::string> descriptions;
  for (const auto& [group, life] : lives_) {
    life.look();
    descriptions[group] = life.description();
  }
  Snapshot result;
  result.has_digests = takes_digests_;
  std::lock_guard lock(mutex_);
  std::vector<std::size_t> places(records_.size());
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].replaced) continue;
    places[i] = result.groups.size();
    result.groups.push_back(records_[i].group);
    if (descriptions.contains(i)) result.groups.back().description = descriptions[i];
  }
  const std::uint64_t first = num_created_ - std::min<std::uint64_t>(num_created_, entries_.size());
  for (std::uint64_t id = first; id < num_created_; ++id) {
    const Entry* const entry = find(id);
    // An operation that was not made has none, and may have overwritten the oldest.
    if (entry == nullptr || records_[entry->group].replaced) continue;
    result.entries.push_back(*entry);
    result.entries.back().group = places[entry->group];
  }
  return result;
}

std::uint64_t FlightRecorder::global_rank() {
  std::lock_guard lock(mutex_);
  if (records_.empty()) return 0;
  const Group& group = records_.back().group;
  return group.global_ranks.at(group.rank);
}

std::vector<FlightRecorder::DumpsWritten> FlightRecorder::request_dumps() {
  std::lock_guard lives_lock(lives_mutex_);
  std::vector<DumpsWritten> requests;
  for (const auto& [group, life] : lives_) {
    if (DumpsWritten written = life.request_dumps()) requests.push_back(std::move(written));
  }
  return requests;
}

}  // namespace ringcomm
