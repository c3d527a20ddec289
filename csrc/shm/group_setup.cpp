#include "shm/group_setup.h"

#include "setup/record.h"

namespace ringcomm::shm {
namespace {

constexpr char kMadeTag[] = "made";

}  // namespace

GroupSetup::GroupSetup(Segment& segment, Store& store, const GroupConfig& config)
    : config_(config),
      rank_(config.rank),
      bootstrap_(store, config),
      segment_setup_(segment, bootstrap_, config) {}

Placement GroupSetup::run() {
  try {
    return rank_ == 0 ? lead() : follow();
  } catch (...) {
    segment_setup_.clean_up();
    if (rank_ != 0) bootstrap_.leave(is_refused_ || bootstrap_.is_refused());
    throw;
  }
}

std::string GroupSetup::made_message(const InterHostConfig& inter_host,
                                     const std::vector<std::string>& host_names) {
  RecordWriter word;
  word << kMadeTag << inter_host.text();
  for (const std::string& name : host_names) word << name;
  return word.text();
}

bool GroupSetup::is_made(const std::string& word, InterHostConfig* inter_host,
                         std::vector<std::string>* host_names) {
  RecordReader record(word);
  std::string tag, text;
  record >> tag >> text;
  const std::optional<InterHostConfig> found = InterHostConfig::read(text);
  if (!record || tag != kMadeTag || !found) return false;
  *inter_host = *found;
  while (record && !record.is_at_end()) record >> host_names->emplace_back();
  return static_cast<bool>(record);
}

Placement GroupSetup::follow() {
  bool listens = true;
  for (;;) {
    if (const std::optional<Placement> made = go_on(listens)) return *made;
    std::vector<int> awaited = {0};
    if (!wrote_death_) {
      for (const int rank : segment_setup_.awaited()) awaited.push_back(rank);
    }
    listens = !segment_setup_.has_joined();
    try {
      // In memory all is said there, but for what its first rank does not live to say.
      if (bootstrap_.pause(awaited)) listens = true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kPeerDied) throw;
      if (const std::optional<Placement> made = after_death(error)) return *made;
    }
  }
}

// Where the group is made.
std::optional<Placement> GroupSetup::go_on(bool listens) {
  if (listens) {
    if (const std::optional<Placement> made = listen()) return made;
  }
  or_write(config_.members.name(rank_) + " could not join the group: ",
           [this] { segment_setup_.join(); });
  if (segment_setup_.is_first()) or_write("", [this] { report(); });
  try {
    const std::optional<Placement> made = segment_setup_.verdict();
    if (made) inter_host_ = segment_setup_.inter_host();
    return made;
  } catch (const Error&) {
    is_refused_ = true;
    throw;
  }
}

std::optional<Placement> GroupSetup::listen() {
  std::optional<std::string> word;
  for (;;) {
    try {
      word = bootstrap_.next_broadcast();
    } catch (const Error& refusal) {
      segment_setup_.declare_refused(refusal);
      throw;
    }
    if (!word) return std::nullopt;
    std::vector<std::string> host_names;
    if (is_made(*word, &inter_host_, &host_names)) {
      if (assignment_.tickets().empty()) continue;  // with another in this one's place
      const Placement placement = assignment_.placement();
      if (static_cast<int>(host_names.size()) != placement.num_hosts()) break;
      segment_setup_.declare_made(placement, host_names, inter_host_);
      leave();
      if (segment_setup_.has_joined()) segment_setup_.await_first();
      return placement;
    }
    RecordReader record(*word);
    std::string name;
    record >> name;
    const std::optional<HostAssignment> assignment =
        HostAssignment::read(record.rest(), config_.world_size);
    if (!record || !assignment) break;
    assignment_ = *assignment;
    if (assignment_.tickets().at(rank_) == bootstrap_.self().ticket) {
      or_write("", [&] { segment_setup_.take_part(assignment_, name); });
    } else {
      assignment_ = HostAssignment();
    }
  }
  throw bootstrap_.not_understood("rank 0");
}

// The group is made: this rank, and for the first those of its host, read nothing more in the
// store.
void GroupSetup::leave() noexcept {
  if (!segment_setup_.is_first()) return;
  bootstrap_.leave(segment_setup_.await_others());
  segment_setup_.let_go();
}

void GroupSetup::report() {
  for (const SetupMessage& message : bootstrap_.receive()) segment_setup_.take_in(message);
  if (const auto outcome = segment_setup_.outcome()) bootstrap_.send(0, outcome->text());
}

// What ends this rank's part ends the group.
void GroupSetup::or_write(const std::string& prefix, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    bootstrap_.send(0, write_refusal(Error(error.kind(), prefix + error.what())));
    throw;
  }
}

// The group may be made nevertheless; else rank 0 is to refuse it to all, in the same words.
std::optional<Placement> GroupSetup::after_death(const Error& death) {
  if (const std::optional<Placement> made = go_on(true)) return made;
  if (wrote_death_ || !bootstrap_.knows_rank_0()) throw death;
  wrote_death_ = true;
  bootstrap_.refuse_for_rank_0(death);
  bootstrap_.send(0, write_refusal(death));
  return std::nullopt;
}

}  // namespace ringcomm::shm
