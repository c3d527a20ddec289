// How the living ranks agree on which of them go on, on one host and on several.
//
// No memory reaches all living ranks, and the links of a host end with its leader. What does reach
// them is the store in which the group has met, and a rank that cannot reach that cannot make a new
// group. So they agree there. A decision is a key that can be set only once, so that a rank that
// comes too late, dies or believes something else changes nothing. Rounds are numbered, and in
// round k, under "shrink/NAME/k/":
//
//   survivors   once      some ranks that have joined
//   verdict     once      made: they have a new group, and no other round begins
//                         again: one of them died before; the next round begins
//                         R, calls, why: rank R has given up; all that are in the round raise that.
//                         For those that exclude R the next round begins
//   absent      once      likewise, written in the round before: a rank that comes later waits
//                         for R no longer than a second
//   reports/H   host H    what its ranks know (shm/membership_report.h), if there are other hosts;
//                         any of them writes it from their memory, one at a time, twice a second
//                         and when something has changed
//
// A rank
//
//   1. joins                  state.shrink.joined = k + 1, in its host's memory
//   2. gathers                until every rank that is not excluded has joined or is gone. Then it
//                             proposes them as survivors; where hosts may be cut off from each
//                             other, the largest partition of ranks that receive from each other,
//                             if its host belongs to that
//   3. makes the new group    if it is one of the survivors
//   4. votes                  state.shrink.built = k + 1, likewise
//   5. ends the round         if all survivors have voted: made; if one is gone and has not: again
//
// Invariant: there is at most one set of survivors that has a new group. A round has one verdict
// and one set of survivors, as the store keeps one; "made" takes the votes of all of them; and the
// next round begins with "again" or if a rank gave up. A rank that dies after its vote is a dead
// member of the new group, which can be shrunk like this one.
//
// Which ranks are gone: a rank can be certain about those of its own host, whose states it sees.
// For another host, its report counts. If it has none, the hosts that listen report: their
// heartbeats know (hosts/heartbeat.h) whether anything came from it in the last seconds, be it that
// its leader has died or that it is cut off. So if a leader has died, the other ranks of its host
// have those seconds to join.
//
// Two parts that are cut off from each other both reach the store, or one does. In the first case
// both see by the reports which part is to go on, and the other one waits for the verdict: a silent
// host has two seconds to appear there. In the second case one goes on, and the other raises that
// the store does not answer. If what they see differs, the first to propose goes on.
//
// Why no rank hangs: a rank that waits too long gives up, and so ends the round, or finds that the
// group was made after all. One that is not among the survivors leaves the round to them. If R
// gives up and only some ranks exclude R, the others raise that, and those must not wait for them:
// they find in the verdict that there were different calls, and raise that.
#include "shm/shrink.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <random>

#include "core/call.h"
#include "core/deadline.h"
#include "core/poll.h"
#include "core/text.h"
#include "core/thread.h"
#include "setup/record.h"
#include "shm/membership_report.h"

namespace ringcomm::shm {
namespace {

using std::chrono::milliseconds;

const std::string kMade = "made";
const std::string kAgain = "again";

// How long a silent host has to write something to the store.
constexpr std::chrono::seconds kToAppear{2};
// A report that has nothing new is written again after that.
constexpr milliseconds kRenew{500};
// Between hosts, what a death makes fail fails before that is known of the death: so much longer
// than a host may be silent.
constexpr milliseconds kDeathIsKnown{1000};
// Between two looks at the store of one rank, and of one host at a report. All ranks share it.
constexpr int kRanksPerMillisecond = 8;
constexpr milliseconds kTurnPerReport{5};

// A state that may pass by itself: a rank that made a different call may call again, and rightly.
class Persistent {
 public:
  // Whether there is some, and has been for a while.
  bool lasts(bool is_there) {
    if (!is_there) since_ = Clock::time_point::max();
    if (is_there && since_ == Clock::time_point::max()) since_ = Clock::now();
    return is_there && Clock::now() - since_ > kGrace;
  }

 private:
  static constexpr std::chrono::seconds kGrace{1};
  Clock::time_point since_ = Clock::time_point::max();
};

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

std::uint64_t digest_of(const ShrinkCall& call) {
  Digest digest;
  digest.add(call.exact ? 1 : 0);
  for (const int r : call.excluded) digest.add(static_cast<std::uint64_t>(r));
  return digest.value();
}

class Shrinking {
 public:
  Shrinking(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make)
      : group_(group),
        store_(store),
        call_(call),
        digest_(digest_of(call)),
        deadline_(Deadline::in(call.timeout)),
        make_(make),
        pause_(std::max(1, group.world_size / kRanksPerMillisecond)),
        turn_(kTurnPerReport * (group.placement().num_hosts() - 1)) {}

  Survivors run() {
    try {
      check_not_left();
      own_state().shrink.call.store(digest_);
      for (find_round(); !take_part(); ++round_) {
      }
    } catch (const NoThread& error) {  // what all raise, this rank cannot call again alone
      at_the_end([&] { give_up_for_later_callers(std::make_exception_ptr(error.for_good())); });
      if (!is_made()) throw error.for_good();
    } catch (const Error& error) {
      at_the_end([&] { give_up(error); });
      if (!is_made()) throw;
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      at_the_end([&] { give_up_for_later_callers(error); });
      if (!is_made()) throw;
    }
    return std::move(survivors_);
  }

  void give_up_for_later_callers(const std::exception_ptr& error) {
    const Error shown(ErrorKind::kSystem, what_of(error));
    find_round();
    if (may_end_the_round()) store_.set_once(key("absent", round_ + 1), verdict_for(shown));
    give_up(shown);
  }

 private:
  RankState& state(int rank) { return group_.segment().state(rank); }
  RankState& own_state() { return state(group_.rank); }
  std::string key(const std::string& what) const { return key(what, round_); }
  std::string key(const std::string& what, std::uint64_t round) const {
    return "shrink/" + group_.segment().name() + "/" + std::to_string(round) + "/" + what;
  }
  std::string report_key(int host) const { return key("reports/" + std::to_string(host)); }

  void find_round() {
    while (is_over_before()) ++round_;
  }
  bool is_over_before() {
    const auto verdict = store_.find(key("verdict"));
    return verdict && *verdict != kMade;
  }

  void begin() {
    survivors_ = {};
    verdict_ = {};
    reports_.emplace(group_.placement(), group_.heartbeat_timeout());
    began_ = Clock::now();
    persistent_ = {};
    is_missed_ = {};
  }

  // True: the group is made. False: another round begins.
  bool take_part() {
    begin();
    own_state().shrink.joined.store(round_ + 1);
    group_.segment().header().shrink_turn.store(0);
    if (!wait_until([&] { return !survivors_.ranks.empty(); })) return false;
    const bool makes = is_survivor() && !verdict_;
    if (makes && !make_and_vote()) return false;
    if (!wait_until([&] { return verdict_ == kMade; })) return false;
    if (makes) return true;
    throw error(ErrorKind::kClosed, names(survivors_.ranks) +
                                        (survivors_.ranks.size() == 1 ? " has" : " have") +
                                        " gone on without this one");
  }

  bool is_survivor() const { return std::ranges::binary_search(survivors_.ranks, group_.rank); }
  bool excludes(int rank) const { return std::ranges::binary_search(call_.excluded, rank); }

  // False: the round was aborted.
  template <typename Done>
  bool wait_until(Done done) {
    for (Poll poll(pause_);; poll.sleep()) {
      look();
      if (is_over()) return false;
      if (done()) return true;
      check_not_late();
    }
  }

  // Whether the next round begins. Throws what the round was given up for.
  bool is_over() const {
    if (!verdict_ || *verdict_ == kMade) return false;
    if (*verdict_ == kAgain) return true;
    if (!excludes(std::stoi(*verdict_))) throw error_in(*verdict_);
    check_calls_in(*verdict_);
    return true;
  }

  std::string verdict_for(const Error& error) {
    TextWriter text;
    text << group_.rank;
    for (const auto& [rank, digest] : count().calls) text << ' ' << rank << ' ' << digest;
    text << '\n' << write_refusal(error);
    return text.str();
  }
  Error error_in(const std::string& verdict) const {
    const auto why = read_refusal(verdict.substr(verdict.find('\n') + 1));
    if (!why) return error(ErrorKind::kSystem, "the store holds no verdict: " + verdict);
    return error(why->kind(), names({std::stoi(verdict)}) + " gave up: " + why->what());
  }
  // Throws if a rank has raised what this rank does not, as it excludes others.
  void check_calls_in(const std::string& verdict) const {
    TextReader stream(verdict.substr(0, verdict.find('\n')));
    std::vector<int> mismatched;
    int rank = 0;
    stream >> rank;
    for (std::uint64_t digest = 0; stream >> rank >> digest;) {
      if (!excludes(rank) && digest != digest_) mismatched.push_back(rank);
    }
    if (!mismatched.empty()) throw differ(mismatched);
  }

  bool make_and_vote() {
    try {
      make_(survivors_, [this] { watch(); });
    } catch (const Error&) {
      const milliseconds longest =
          group_.spans_hosts() ? group_.heartbeat_timeout() + kDeathIsKnown : milliseconds(0);
      bool over = false;
      poll_for(longest, Poll(pause_), [&] {
        look();
        return (over = is_over()) || is_late();
      });
      if (over) return false;
      throw;
    }
    own_state().shrink.built.store(round_ + 1);
    group_.segment().header().shrink_turn.store(0);
    return true;
  }

  void watch() {
    if (Clock::now() < look_next_) return;
    look();
    if (is_over()) throw Error(ErrorKind::kPeerDied, "a survivor is gone, too");
    check_not_late();
  }

  // The verdict is read first, so that survivors are found if it says made.
  void look() {
    check_interrupt();
    check_not_left();
    verdict_ = store_.find(key("verdict"));
    if (survivors_.ranks.empty()) accept(store_.find(key("survivors")));
    if (!verdict_ && takes_turn()) {
      exchange_reports();
      survivors_.ranks.empty() ? decide_who_survives() : decide_whether_made();
    }
    look_next_ = Clock::now() + pause_;
  }

  // On one host every rank does, as it sees all states.
  bool takes_turn() {
    if (!group_.spans_hosts()) return true;
    std::atomic<std::int64_t>& turn = group_.segment().header().shrink_turn;
    const std::int64_t now = Clock::now().time_since_epoch().count();
    std::int64_t last = turn.load();
    return now - last >= std::chrono::nanoseconds(turn_).count() &&
           turn.compare_exchange_strong(last, now);
  }

  void exchange_reports() {
    if (!group_.spans_hosts()) return;
    MembershipReport own = own_report();
    for (int host = 0; host < group_.placement().num_hosts(); ++host) {
      const auto text = store_.find(report_key(host));
      const auto report = text ? MembershipReport::read(*text, group_.world_size) : std::nullopt;
      if (report) reports_->take(host, *report);
    }
    const MembershipReport* last = reports_->of(group_.host());
    if (last != nullptr && last->says_the_same_as(own) &&
        Clock::now() - *reports_->since(group_.host()) < kRenew) {
      return;
    }
    own.number = random_number();
    store_.set(report_key(group_.host()), own.text());
    reports_->take(group_.host(), own);
  }

  MembershipReport own_report() {
    MembershipReport report;
    report.listens =
        !is_gone(group_.own_leader()) && group_.liveness().has_contact(group_.host()).has_value();
    for (int r = 0; r < group_.world_size; ++r) {
      report.ranks.push_back(group_.is_local(r) ? known_here(r) : known_elsewhere(r));
      if (has_joined(report.ranks.back())) report.calls[r] = state(r).shrink.call.load();
    }
    return report;
  }

  static bool has_joined(MemberState state_of) {
    return state_of == MemberState::kJoined || state_of == MemberState::kVoted;
  }

  bool has_left() { return own_state().liveness.closed.load() == Closed::kLeft; }
  // Another thread may leave at any time. The others see that.
  void check_not_left() {
    if (has_left()) throw error(ErrorKind::kClosed, "this rank has left the group");
  }

  bool is_gone(int rank) {
    const RankState& s = state(rank);
    return s.liveness.closed.load() == Closed::kLeft || s.liveness.ended.load() != 0 ||
           (group_.is_local(rank) && group_.segment().has_ended(rank));
  }

  MemberState known_here(int rank) {
    if (state(rank).shrink.built.load() > round_) return MemberState::kVoted;
    if (is_gone(rank)) return MemberState::kGone;
    return state(rank).shrink.joined.load() > round_ ? MemberState::kJoined : MemberState::kLives;
  }

  MemberState known_elsewhere(int rank) {
    if (is_gone(rank)) return MemberState::kGone;
    const int host = group_.placement().host_of[rank];
    const std::vector<int> ranks = group_.placement().ranks_on(host);
    const bool is_last = std::ranges::all_of(ranks, [&](int r) { return r == rank || is_gone(r); });
    if (is_last && !group_.remote_hosts()->failure(rank).empty()) return MemberState::kGone;
    const std::optional<bool> contact = group_.liveness().has_contact(host);
    if (!contact) return MemberState::kNothing;
    return *contact ? MemberState::kLives : MemberState::kSilent;
  }

  MemberState state_of(int rank) {
    if (group_.is_local(rank)) return known_here(rank);
    return reports_ ? reports_->state_of(rank) : MemberState::kNothing;
  }
  // What a rank asks for that has joined; 0 if that is not known.
  std::uint64_t call_of(int rank) {
    if (group_.is_local(rank)) return state(rank).shrink.call.load();
    const MembershipReport* report = reports_->of(group_.placement().host_of[rank]);
    return report != nullptr && report->calls.contains(rank) ? report->calls.at(rank) : 0;
  }

  struct Count {
    std::vector<int> joined, mismatched, gone, awaited;
    std::map<int, std::uint64_t> calls;  // of all that have joined
  };
  Count count() {
    Count count;
    const bool may_appear = Clock::now() - began_ < kToAppear;
    for (int r = 0; r < group_.world_size; ++r) {
      const MemberState now = state_of(r);
      if (has_joined(now)) count.calls[r] = call_of(r);
      if (excludes(r)) continue;
      if (has_joined(now)) {
        count.joined.push_back(r);
        if (count.calls[r] != digest_) count.mismatched.push_back(r);
      } else if (now == MemberState::kGone || (now == MemberState::kSilent && !may_appear)) {
        count.gone.push_back(r);
      } else {
        count.awaited.push_back(r);
      }
    }
    return count;
  }

  void decide_who_survives() {
    const Count count = this->count();
    if (persistent_.lasts(!count.mismatched.empty())) throw differ(count.mismatched);
    if (is_missed_.lasts(!count.awaited.empty())) check_absent(count.awaited);
    if (!count.mismatched.empty() || !count.awaited.empty()) return;
    // When all are in the round, as then all raise it.
    check_exact(count.gone);
    const std::vector<int> part = reports_->largest_partition(count.joined);
    if (!std::ranges::binary_search(part, group_.rank)) return;
    std::vector<int> others;
    std::ranges::set_difference(count.joined, part, std::back_inserter(others));
    check_exact(others);
    TextWriter text;
    text << random_number();
    for (const int r : part) text << ' ' << r;
    accept(store_.set_once(key("survivors"), text.str()));
  }

  // Throws if one of them has given up before this round.
  void check_absent(const std::vector<int>& awaited) {
    const auto absent = store_.find(key("absent"));
    if (absent && std::ranges::binary_search(awaited, std::stoi(*absent))) throw error_in(*absent);
  }

  void check_exact(const std::vector<int>& gone) const {
    if (!call_.exact || gone.empty()) return;
    throw error(ErrorKind::kPeerDied,
                names(gone) + (gone.size() == 1 ? " is" : " are") +
                    " gone, too, and must be excluded, too. ringcomm.shrink() finds the dead");
  }

  void accept(const std::optional<std::string>& text) {
    if (!text) return;
    TextReader stream(*text);
    Survivors found;
    stream >> found.key;
    found.key += "/" + std::to_string(round_);
    for (int rank = 0; stream >> rank;) found.ranks.push_back(rank);
    survivors_ = std::move(found);
  }

  void decide_whether_made() {
    const std::vector<int> missing = missing_votes();
    const bool is_one_gone = std::ranges::any_of(missing, [&](int r) {
      const MemberState now = state_of(r);
      return now == MemberState::kGone || now == MemberState::kSilent;
    });
    if (missing.empty()) judge(kMade);
    if (is_one_gone) judge(kAgain);
  }

  std::vector<int> missing_votes() {
    std::vector<int> missing;
    std::ranges::copy_if(survivors_.ranks, std::back_inserter(missing),
                         [&](int r) { return state_of(r) != MemberState::kVoted; });
    return missing;
  }

  void judge(const std::string& verdict) { verdict_ = store_.set_once(key("verdict"), verdict); }

  bool may_end_the_round() const {
    return !verdict_ && (survivors_.ranks.empty() || is_survivor());
  }

  // For all that are in the round; if that has ended, and they begin another, in that.
  void give_up(const Error& error) {
    if (has_left()) return;
    if (may_end_the_round()) judge(verdict_for(error));
    while (verdict_ == kAgain) {
      verdict_ = store_.set_once(key("verdict", round_ + 1), verdict_for(error));
      ++round_;
    }
  }

  // Whether this rank has made the new group with the other survivors.
  bool is_made() { return verdict_ == kMade && own_state().shrink.built.load() == round_ + 1; }

  bool is_late() const { return deadline_.has_passed(); }
  void check_not_late() {
    if (!is_late()) return;
    exchange_reports();
    if (!survivors_.ranks.empty()) throw late(names(missing_votes()) + " to make the new group");
    const Count count = this->count();
    if (!count.awaited.empty()) {
      throw late(names(count.awaited) + " to call it, too. If they never will, exclude them");
    }
    if (!count.mismatched.empty())
      throw late(names(count.mismatched) + " to exclude the same ranks");
    throw late(names(count.joined) + " to say who goes on");
  }

  // The words of this rank when it raises: "rank 2 in shrink without rank 1: why".
  std::string names(const std::vector<int>& ranks) const { return group_.members.names(ranks); }
  std::string who() const {
    return group_.members.name(group_.rank) + " in shrink" +
           (call_.excluded.empty() ? "" : " without " + names(call_.excluded));
  }
  Error error(ErrorKind kind, const std::string& why) const { return {kind, who() + ": " + why}; }
  Error late(const std::string& waiting_for) const {
    return {ErrorKind::kTimeout, timed_out(who(), deadline_) + ", waiting for " + waiting_for};
  }
  Error differ(const std::vector<int>& ranks) const {
    return error(ErrorKind::kMismatch,
                 names(ranks) + " called it, too, but not with the same ranks to exclude");
  }

  Group& group_;
  Store& store_;
  const ShrinkCall& call_;
  const std::uint64_t digest_;  // of what it asks for, which must be the same on all ranks
  const Deadline deadline_;
  const MakeGroup& make_;
  const milliseconds pause_;
  const milliseconds turn_;
  std::uint64_t round_ = 0;
  std::optional<MembershipReports> reports_;  // of the round
  Survivors survivors_;
  std::optional<std::string> verdict_;
  Clock::time_point began_;  // the round
  Persistent persistent_, is_missed_;
  Clock::time_point look_next_{};
};

}  // namespace

Survivors shrink(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make) {
  return Shrinking(group, store, call, make).run();
}

void decline_to_shrink(Group& group, Store& store, const ShrinkCall& call,
                       const std::exception_ptr& error) noexcept {
  at_the_end([&] {
    const MakeGroup none;
    Shrinking(group, store, call, none).give_up_for_later_callers(error);
  });
}

}  // namespace ringcomm::shm
