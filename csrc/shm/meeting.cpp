#include "shm/meeting.h"

#include "core/record.h"
#include "core/refusal.h"

namespace ringcomm::shm {
namespace {

constexpr char kMadeTag[] = "made";

}  // namespace

Meeting::Meeting(Segment& segment, Store& store, const Invitation& invitation)
    : invitation_(invitation),
      rank_(invitation.rank),
      roll_call_(store, invitation),
      attempt_(segment, roll_call_, invitation) {}

Placement Meeting::hold() {
  try {
    return rank_ == 0 ? lead() : follow();
  } catch (...) {
    attempt_.clean_up();
    if (rank_ != 0) roll_call_.leave(is_refused_ || roll_call_.is_refused());
    throw;
  }
}

std::string Meeting::made_word(const Between& between, const std::vector<std::string>& host_names) {
  RecordWriter word;
  word << kMadeTag << between.text();
  for (const std::string& name : host_names) word << name;
  return word.text();
}

bool Meeting::is_made(const std::string& word, Between* between,
                      std::vector<std::string>* host_names) {
  RecordReader record(word);
  std::string tag, text;
  record >> tag >> text;
  const std::optional<Between> found = Between::read(text);
  if (!record || tag != kMadeTag || !found) return false;
  *between = *found;
  while (record && !record.is_at_end()) record >> host_names->emplace_back();
  return static_cast<bool>(record);
}

Placement Meeting::follow() {
  bool listens = true;
  for (;;) {
    if (const std::optional<Placement> made = go_on(listens)) return *made;
    std::vector<int> awaited = {0};
    if (!wrote_death_) {
      for (const int rank : attempt_.awaited()) awaited.push_back(rank);
    }
    listens = !attempt_.has_joined();
    try {
      // In memory all is said there, but for what its first rank does not live to say.
      if (roll_call_.pause(awaited)) listens = true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kPeerDied) throw;
      if (const std::optional<Placement> made = after_death(error)) return *made;
    }
  }
}

// Where the group is made.
std::optional<Placement> Meeting::go_on(bool listens) {
  if (listens) {
    if (const std::optional<Placement> made = listen()) return made;
  }
  or_write(invitation_.members.name(rank_) + " could not join the group: ",
           [this] { attempt_.join(); });
  if (attempt_.is_first()) or_write("", [this] { report(); });
  try {
    const std::optional<Placement> made = attempt_.verdict();
    if (made) between_ = attempt_.between();
    return made;
  } catch (const Error&) {
    is_refused_ = true;
    throw;
  }
}

std::optional<Placement> Meeting::listen() {
  std::optional<std::string> word;
  for (;;) {
    try {
      word = roll_call_.hear();
    } catch (const Error& refusal) {
      attempt_.declare_refused(refusal);
      throw;
    }
    if (!word) return std::nullopt;
    std::vector<std::string> host_names;
    if (is_made(*word, &between_, &host_names)) {
      if (seating_.tickets().empty()) continue;  // with another in this one's place
      const Placement placement = seating_.placement();
      if (static_cast<int>(host_names.size()) != placement.num_hosts()) break;
      attempt_.declare_made(placement, host_names, between_);
      leave();
      if (attempt_.has_joined()) attempt_.await_first();
      return placement;
    }
    RecordReader record(*word);
    std::string name;
    record >> name;
    const std::optional<Seating> seating = Seating::read(record.rest(), invitation_.world_size);
    if (!record || !seating) break;
    seating_ = *seating;
    if (seating_.tickets().at(rank_) == roll_call_.self().ticket) {
      or_write("", [&] { attempt_.sit(seating_, name); });
    } else {
      seating_ = Seating();
    }
  }
  throw roll_call_.not_understood("rank 0");
}

// The group is made: this rank, and for the first those of its host, read nothing more in the
// store.
void Meeting::leave() noexcept {
  if (!attempt_.is_first()) return;
  roll_call_.leave(attempt_.await_others());
  attempt_.let_go();
}

void Meeting::report() {
  for (const Letter& letter : roll_call_.letters()) attempt_.take_in(letter);
  if (const auto outcome = attempt_.outcome()) roll_call_.send(0, outcome->text());
}

// What ends this rank's part ends the group.
void Meeting::or_write(const std::string& prefix, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    roll_call_.send(0, write_refusal(Error(error.kind(), prefix + error.what())));
    throw;
  }
}

// The group may be made nevertheless; else rank 0 is to refuse it to all, in the same words.
std::optional<Placement> Meeting::after_death(const Error& death) {
  if (const std::optional<Placement> made = go_on(true)) return made;
  if (wrote_death_ || !roll_call_.has_met_rank_0()) throw death;
  wrote_death_ = true;
  roll_call_.speak_for_rank_0(death);
  roll_call_.send(0, write_refusal(death));
  return std::nullopt;
}

}  // namespace ringcomm::shm
