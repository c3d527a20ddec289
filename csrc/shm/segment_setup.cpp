#include "shm/segment_setup.h"

#include <algorithm>

#include "core/poll.h"
#include "setup/record.h"

namespace ringcomm::shm {
namespace {

// How long the first waits for the others of its host, and they for it: longer than it may wait for
// those of other hosts.
constexpr std::chrono::seconds kPatience{1}, kPatienceWithFirst{10};
constexpr std::chrono::microseconds kPause{100};
constexpr char kOutcome[] = "outcome";
const std::string kOutOfReach = "out of reach ";

}  // namespace

SegmentSetup::SegmentSetup(Segment& segment, Bootstrap& bootstrap, const GroupConfig& config)
    : segment_(segment),
      bootstrap_(bootstrap),
      names_(config.members),
      tuned_(config.tuned),
      engines_(config.engines),
      rank_(config.rank) {}

void SegmentSetup::take_part(const HostAssignment& assignment, const std::string& name) {
  const Placement placement = assignment.placement();
  const std::vector<int> members = placement.ranks_on(placement.host_of[rank_]);
  const int number = assignment.attempt_of(rank_);
  is_only_host_ = placement.num_hosts() == 1;
  segment_.name_ = name;
  if (number == number_ && members == members_) return;
  members_ = members;
  out_of_reach_.clear();
  is_published_ = false;
  if (number == number_) return;
  leave();
  number_ = number;
  const int first = members_.front();
  if (first != rank_) {
    bootstrap_.connect(first, assignment.tickets()[first]);
    part_ = Part::kLooking;
    return;
  }
  for (const int member : members_) {
    if (member != rank_) bootstrap_.connect(member, assignment.tickets()[member]);
  }
  const std::string address =
      segment_.open(assignment.is_named(number_) ? File::Kind::kNamed : File::Kind::kAnonymous,
                    names_, bootstrap_.self());
  segment_.set_tuned(tuned_);
  part_ = Part::kFirst;
  if (members_.size() > 1) bootstrap_.publish(number_, address);
}

void SegmentSetup::leave() {
  if (is_first()) segment_.header().setup.store(Setup::kAgain, std::memory_order_release);
  part_ = Part::kIdle;
  segment_.leave();
}

bool SegmentSetup::is_missing(int rank) {
  return segment_.state(rank).joined.load(std::memory_order_acquire) == 0 &&
         std::ranges::find(out_of_reach_, rank) == out_of_reach_.end();
}

std::vector<int> SegmentSetup::awaited() {
  if (part_ == Part::kNone) return {};
  if (!is_first()) return {members_.front()};
  std::vector<int> missing;
  for (const int member : members_) {
    if (is_missing(member)) missing.push_back(member);
  }
  return missing;
}

std::optional<SegmentSetup::Outcome> SegmentSetup::outcome() {
  if (!is_first() || is_published_ || !awaited().empty()) return std::nullopt;
  Outcome outcome{number_, segment_.file_.kind() == File::Kind::kNamed, out_of_reach_, {}};
  if (!is_only_host_ && engines_) outcome.engines = engines_();
  segment_.file_.unlink();
  is_published_ = true;
  return outcome;
}

void SegmentSetup::take_in(const SetupMessage& message) {
  if (!is_first() || message.text != kOutOfReach + std::to_string(number_)) return;
  if (is_missing(message.from)) out_of_reach_.push_back(message.from);
}

void SegmentSetup::declare_made(const Placement& placement,
                                const std::vector<std::string>& host_names,
                                const InterHostConfig& inter_host) {
  if (!is_first()) return;
  GroupHeader& shared = segment_.header();
  shared.engine.assign(inter_host.engine);
  shared.link = inter_host.link;
  shared.heartbeat_timeout = inter_host.heartbeat_timeout.count();
  for (int r = 0; r < segment_.geometry().world_size; ++r) {
    RankState& state = segment_.state(r);
    state.host_number = placement.host_of[r];
    if (placement.together(r, rank_)) continue;
    state.global_rank = names_.global(r);
    state.host.assign(host_names.at(state.host_number));
  }
  segment_.count(Area::kBase, segment_.geometry().base_nbytes);
  shared.setup.store(Setup::kMade, std::memory_order_release);
}

bool SegmentSetup::await_others() noexcept {
  if (!is_first()) return true;
  const Clock::time_point start = Clock::now();
  const auto knows = [&](int rank) {
    RankState& state = segment_.state(rank);
    if (rank == rank_ || state.left.load(std::memory_order_acquire) != 0) return true;
    return Clock::now() - start > kLookEvery && !state.process.runs();
  };
  return poll_for(kPatience, Poll(kPause), [&] { return std::ranges::all_of(members_, knows); });
}

void SegmentSetup::let_go() noexcept {
  if (is_first()) segment_.header().setup.store(Setup::kDone, std::memory_order_release);
}

// The first does not wait without a limit for others (setup/bootstrap.h). If it ends, the group is
// made nevertheless.
void SegmentSetup::await_first() {
  segment_.state(rank_).left.store(1, std::memory_order_release);
  const Process first = segment_.state(members_.front()).process;
  Poll poll(kPause);
  poll_for(kPatienceWithFirst, poll, [&] {
    return segment_.header().setup.load(std::memory_order_acquire) == Setup::kDone ||
           (poll.looks_around() && !first.runs());
  });
}

InterHostConfig SegmentSetup::inter_host() { return segment_.header().inter_host(); }

void SegmentSetup::declare_refused(const Error& error) {
  if (!is_first()) return;
  GroupHeader& shared = segment_.header();
  shared.refusal_kind = error.kind();
  shared.refusal.assign(error.what());
  shared.setup.store(Setup::kRefused, std::memory_order_release);
}

void SegmentSetup::join() {
  if (part_ != Part::kLooking) return;
  const int first = members_.front();
  const std::optional<std::string> address = bootstrap_.published_by(first, number_);
  if (!address) return;
  if (segment_.join(*address, names_, bootstrap_.self())) {
    part_ = Part::kJoined;
  } else {
    part_ = Part::kIdle;
    bootstrap_.send(first, kOutOfReach + std::to_string(number_));
  }
}

std::optional<Placement> SegmentSetup::verdict() {
  if (!has_joined()) return std::nullopt;
  const GroupHeader& shared = segment_.header();
  switch (shared.setup.load(std::memory_order_acquire)) {
    case Setup::kPending:
      return std::nullopt;
    case Setup::kAgain:
      leave();
      return std::nullopt;
    case Setup::kRefused:
      throw Error(std::min(read_once(shared.refusal_kind), ErrorKind::kLibrary),
                  shared.refusal.str());
    case Setup::kMade:
      await_first();
      break;
    case Setup::kDone:
      break;
  }
  Placement placement;
  for (int r = 0; r < segment_.geometry().world_size; ++r) {
    placement.host_of.push_back(segment_.state(r).host_number);
  }
  return placement;
}

void SegmentSetup::clean_up() {
  if (has_joined() && segment_.file_.kind() == File::Kind::kNamed) {
    File::unlink(segment_.file_.address());
  }
}

// ---- The outcome, as it is published ------------------------------------------------------------

std::string SegmentSetup::Outcome::text() const {
  RecordWriter record;
  record << kOutcome << attempt << named << out_of_reach.size();
  for (const int rank : out_of_reach) record << rank;
  for (const std::string& engine : engines) record << engine;
  return record.text();
}

std::optional<SegmentSetup::Outcome> SegmentSetup::Outcome::read(std::string_view text,
                                                                 int world_size) {
  RecordReader record(text);
  std::string kind;
  Outcome outcome{-1, false, {}, {}};
  int num_out_of_reach = 0;
  record >> kind >> outcome.attempt >> outcome.named >> num_out_of_reach;
  if (!record || kind != kOutcome) return std::nullopt;
  for (int i = 0; i < num_out_of_reach; ++i) {
    int rank = -1;
    if (!(record >> rank) || rank < 0 || rank >= world_size) return std::nullopt;
    outcome.out_of_reach.push_back(rank);
  }
  while (record && !record.is_at_end()) record >> outcome.engines.emplace_back();
  return record ? std::optional(outcome) : std::nullopt;
}

}  // namespace ringcomm::shm
