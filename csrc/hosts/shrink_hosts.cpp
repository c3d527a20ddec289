#include "hosts/shrink_hosts.h"

#include <algorithm>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/text.h"
#include "hosts/membership_report.h"
#include "setup/record.h"
#include "setup/store.h"
#include "shm/shrink.h"

namespace ringcomm::hosts {
namespace {

using std::chrono::milliseconds;

const std::string kMade = "made";
const std::string kAgain = "again";

// How long a silent host has to write something to the store.
constexpr std::chrono::seconds kToAppear{2};
// A report that has nothing new is written again after that.
constexpr milliseconds kRenew{500};
// What a death makes fail, fails before that is known of the death: so much longer than a host may
// be silent.
constexpr milliseconds kDeathIsKnown{1000};
// Between two looks at the store of one rank, and of one host at all reports. All ranks share it.
constexpr int kRanksPerMillisecond = 8;
constexpr milliseconds kTurnPerHost{5};

class ShrinkingHosts {
 public:
  ShrinkingHosts(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make)
      : group_(group),
        store_(store),
        caller_(group, call),
        make_(make),
        pause_(std::max(1, group.world_size / kRanksPerMillisecond)),
        turn_(kTurnPerHost * group.placement().num_hosts()) {}

  Survivors run() {
    if (state(group_.rank).liveness.closed.load() == Closed::kLeft) throw caller_.left();
    try {
      state(group_.rank).shrink.call.store(caller_.digest());
      for (find_round(); !take_part(); ++round_) {
      }
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
  std::string key(const std::string& what) const { return key(what, round_); }
  std::string key(const std::string& what, std::uint64_t round) const {
    return "shrink/" + group_.segment().name() + "/" + std::to_string(round) + "/" + what;
  }
  std::string notice_key(int host) const { return key("notices/" + std::to_string(host)); }

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
    state(group_.rank).shrink.joined.store(round_ + 1);
    group_.segment().header().shrink_turn.store(0);
    if (!wait_until([&] { return !survivors_.ranks.empty(); })) return false;
    const bool makes = is_survivor() && !verdict_;
    if (makes && !make_and_vote()) return false;
    if (!wait_until([&] { return verdict_ == kMade; })) return false;
    if (makes) return true;
    throw caller_.error(ErrorKind::kClosed, caller_.names(survivors_.ranks) +
                                                (survivors_.ranks.size() == 1 ? " has" : " have") +
                                                " gone on without this one");
  }

  bool is_survivor() const { return std::ranges::binary_search(survivors_.ranks, group_.rank); }

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
    if (caller_.excludes(std::stoi(*verdict_))) return true;
    throw error_in(*verdict_);
  }

  std::string verdict_for(const Error& error) const {
    return std::to_string(group_.rank) + "\n" + write_refusal(error);
  }
  Error error_in(const std::string& verdict) const {
    const auto why = read_refusal(verdict.substr(verdict.find('\n') + 1));
    if (!why) return caller_.error(ErrorKind::kSystem, "the store holds no verdict: " + verdict);
    return caller_.error(why->kind(),
                         caller_.names({std::stoi(verdict)}) + " gave up: " + why->what());
  }

  bool make_and_vote() {
    try {
      make_(survivors_, [this] { watch(); });
    } catch (const Error&) {
      bool over = false;
      poll_for(group_.heartbeat_timeout() + kDeathIsKnown, Poll(pause_), [&] {
        look();
        return (over = is_over()) || caller_.is_late();
      });
      if (over) return false;
      throw;
    }
    state(group_.rank).shrink.built.store(round_ + 1);
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
    verdict_ = store_.find(key("verdict"));
    if (survivors_.ranks.empty()) accept(store_.find(key("survivors")));
    if (!verdict_ && takes_turn()) {
      exchange_notices();
      survivors_.ranks.empty() ? decide_who_survives() : decide_whether_made();
    }
    look_next_ = Clock::now() + pause_;
  }

  bool takes_turn() {
    std::atomic<std::int64_t>& turn = group_.segment().header().shrink_turn;
    const std::int64_t now = Clock::now().time_since_epoch().count();
    std::int64_t last = turn.load();
    return now - last >= std::chrono::nanoseconds(turn_).count() &&
           turn.compare_exchange_strong(last, now);
  }

  void exchange_notices() {
    MembershipReport own = own_notice();
    for (int host = 0; host < group_.placement().num_hosts(); ++host) {
      const auto text = store_.find(notice_key(host));
      const auto report_ = text ? MembershipReport::read(*text, group_.world_size) : std::nullopt;
      if (report_) reports_->take(host, *report_);
    }
    const MembershipReport* last = reports_->of(group_.host());
    if (last != nullptr && last->says_the_same_as(own) &&
        Clock::now() - *reports_->since(group_.host()) < kRenew) {
      return;
    }
    own.number = random_number();
    store_.set(notice_key(group_.host()), own.text());
    reports_->take(group_.host(), own);
  }

  MembershipReport own_notice() {
    const int leader = group_.own_leader();
    MembershipReport report_;
    report_.listens = !is_gone(leader) && group_.liveness().has_contact(group_.host()).has_value();
    for (int r = 0; r < group_.world_size; ++r) {
      report_.ranks.push_back(group_.is_local(r) ? known_here(r) : known_elsewhere(r));
      const MemberState state_of = report_.ranks.back();
      if (state_of == MemberState::kJoined || state_of == MemberState::kVoted) {
        report_.calls[r] = state(r).shrink.call.load();
      }
    }
    return report_;
  }

  bool is_gone(int rank) {
    const RankState& s = state(rank);
    return s.liveness.closed.load() == Closed::kLeft || s.liveness.ended.load() != 0 ||
           (group_.is_local(rank) && group_.segment().has_ended(rank));
  }

  // A rank that dies after its vote is a dead member of the new group.
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

  struct Count {
    std::vector<int> joined, mismatched, gone, awaited;
  };
  Count count() {
    Count count;
    const bool may_appear = Clock::now() - began_ < kToAppear;
    for (int r = 0; r < group_.world_size; ++r) {
      if (caller_.excludes(r)) continue;
      const MemberState state_of = reports_->state_of(r);
      if (state_of == MemberState::kJoined || state_of == MemberState::kVoted) {
        count.joined.push_back(r);
        const MembershipReport* report_ = reports_->of(group_.placement().host_of[r]);
        const bool agrees = report_ != nullptr && report_->calls.contains(r) &&
                            report_->calls.at(r) == caller_.digest();
        if (!agrees) count.mismatched.push_back(r);
      } else if (state_of == MemberState::kGone ||
                 (state_of == MemberState::kSilent && !may_appear)) {
        count.gone.push_back(r);
      } else {
        count.awaited.push_back(r);
      }
    }
    return count;
  }

  void decide_who_survives() {
    const Count count = this->count();
    if (persistent_.lasts(!count.mismatched.empty())) throw caller_.differ(count.mismatched);
    if (is_missed_.lasts(!count.awaited.empty())) check_absent(count.awaited);
    if (!count.mismatched.empty() || !count.awaited.empty()) return;
    // When all are in the round, as then all raise it.
    if (const auto error = caller_.also_dead(count.gone)) throw *error;
    const std::vector<int> part = reports_->largest_partition(count.joined);
    if (!std::ranges::binary_search(part, group_.rank)) return;
    std::vector<int> others;
    std::ranges::set_difference(count.joined, part, std::back_inserter(others));
    if (const auto error = caller_.also_dead(others)) throw *error;
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
      const MemberState state_of = reports_->state_of(r);
      return state_of == MemberState::kGone || state_of == MemberState::kSilent;
    });
    if (missing.empty()) judge(kMade);
    if (is_one_gone) judge(kAgain);
  }

  std::vector<int> missing_votes() {
    std::vector<int> missing;
    for (const int r : survivors_.ranks) {
      if (reports_->state_of(r) != MemberState::kVoted) missing.push_back(r);
    }
    return missing;
  }

  void judge(const std::string& verdict) { verdict_ = store_.set_once(key("verdict"), verdict); }

  bool may_end_the_round() const {
    return !verdict_ && (survivors_.ranks.empty() || is_survivor());
  }

  // For all that are in the round, unless it has ended.
  void give_up(const Error& error) {
    if (may_end_the_round()) judge(verdict_for(error));
  }

  // Whether this rank has made the new group with the other survivors.
  bool is_made() {
    return verdict_ == kMade && state(group_.rank).shrink.built.load() == round_ + 1;
  }

  void check_not_late() {
    if (!caller_.is_late()) return;
    exchange_notices();
    if (!survivors_.ranks.empty()) throw caller_.late(caller_.to_make_the_group(missing_votes()));
    const Count count = this->count();
    if (!count.awaited.empty()) throw caller_.late(caller_.to_call(count.awaited));
    if (!count.mismatched.empty())
      throw caller_.late(caller_.to_exclude_the_same(count.mismatched));
    throw caller_.late(caller_.names(count.joined) + " to say who goes on");
  }

  Group& group_;
  Store& store_;
  const ShrinkCaller caller_;
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

Survivors shrink_hosts(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make) {
  return ShrinkingHosts(group, store, call, make).run();
}

void decline_to_shrink_hosts(Group& group, Store& store, const ShrinkCall& call,
                             const std::exception_ptr& error) {
  const MakeGroup none;
  ShrinkingHosts(group, store, call, none).give_up_for_later_callers(error);
}

}  // namespace ringcomm::hosts
