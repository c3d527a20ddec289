// How the living of one host agree, in the shared memory of the old group, which the dead cannot
// take along.
//
// One word, the verdict, counts rounds: 2k while round k is open; 2k + 2, which opens the next one,
// if round k was aborted; 2k + 1 for good once it has made the new group, with a digest of its
// ranks. It changes by compare-and-swap alone, so that a round has one end. In round k a rank
//
//   1. joins                  state.shrink.joined = k + 1
//   2. gathers                waits until every rank that is not excluded has joined or is gone.
//                             The survivors are those that have joined
//   3. makes the new group    with them
//   4. votes                  state.shrink.built = k + 1
//   5. ends the round         if all survivors have voted: made; if one is gone and has not:
//                             aborted
//
// and begins again if the round was aborted.
//
// Why all survivors are the same: whether a rank has joined when it is gone does not change any
// more, and one that lives is waited for. So all ranks see the same ranks join, whenever they look,
// and a rank that dies after it has joined counts as a survivor in this round, not in the next.
//
// Why a new group is there if the verdict says so: it takes the votes of all survivors. A rank that
// dies after its vote is a dead member of the new group, which can be shrunk like this one.
//
// Why no rank hangs: a rank that waits too long ends the round itself, in which case no rank gets
// the new group, or finds that it was made after all. Neither waits for another rank.
#include "shm/shrink.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <string>

#include "core/call.h"
#include "core/deadline.h"
#include "core/poll.h"

namespace ringcomm::shm {
namespace {

using std::chrono::microseconds;

class Shrinking {
 public:
  Shrinking(Group& group, const ShrinkCall& call, const MakeGroup& make)
      : group_(group), caller_(group, call), make_(make), round_(verdict().load() / 2) {}

  // What one rank raises for ends the round for all, unless the new group is there already.
  Survivors run() {
    first_round_ = round_ = open_round();
    try {
      agree();
    } catch (const Error&) {
      give_up(round_);
      if (!is_made()) throw;
    } catch (...) {
      give_up_for_later_callers();
      if (!is_made()) throw;
    }
    return std::move(survivors_);
  }

  // The ranks that call shrink after this do not wait for this rank, either.
  void give_up_for_later_callers() {
    give_up(round_);
    give_up(verdict().load() / 2);
  }

 private:
  void agree() {
    RankState& own = state(group_.rank);
    own.shrink.call.store(caller_.digest());
    if (own.shrink.key.load() == 0) own.shrink.key.store(random_number() | 1);
    do {
      round_ = open_round();
      check_not_left();
      own.shrink.joined.store(round_ + 1);
      check_not_left();
    } while (!gather() || !make_and_vote() || !end_together());
  }

  RankState& state(int rank) { return group_.segment().state(rank); }
  std::atomic<std::uint64_t>& verdict() { return group_.segment().header().shrink_verdict; }

  // The verdict if round_ makes the new group: the digest of its ranks stands in the upper half.
  std::uint64_t made() const {
    Digest digest;
    for (const int r : survivors_.ranks) digest.add(static_cast<std::uint64_t>(r));
    return digest.value() << 32 | (2 * round_ + 1);
  }

  // The number of the open round. Throws if the new group is there, without this rank.
  std::uint64_t open_round() {
    const std::uint64_t now = verdict().load();
    if (now % 2 == 1) {
      throw caller_.error(ErrorKind::kClosed, "the other ranks have gone on without this one");
    }
    return now / 2;
  }
  void give_up(std::uint64_t round) {
    if (state(group_.rank).liveness.closed.load() == Closed::kLeft) return;  // the others see that
    state(group_.rank).shrink.gave_up.store(round + 1);
    abort_round();
  }
  bool is_open() { return verdict().load() == 2 * round_; }
  bool is_made() {
    return state(group_.rank).shrink.built.load() == round_ + 1 && verdict().load() == made();
  }
  void abort_round() {
    std::uint64_t open = 2 * round_;
    verdict().compare_exchange_strong(open, 2 * round_ + 2);
  }

  // Called before this rank joins, as a rank that has left must not join; and after, for another
  // thread may leave while it joins: a rank that has seen that it is gone does not count it as
  // joined.
  void check_not_left() {
    if (state(group_.rank).liveness.closed.load() == Closed::kLeft) throw caller_.left();
  }

  bool is_gone(int rank) {
    return state(rank).liveness.closed.load() == Closed::kLeft || group_.segment().has_ended(rank);
  }

  bool gather() {
    Persistent persistent;
    for (Poll poll(microseconds(50), kPollEvery);; sleep(poll)) {
      if (!is_open()) return false;
      std::vector<int> joined, dead, awaited, mismatched, gave_up;
      for (int r = 0; r < group_.world_size; ++r) {
        if (caller_.excludes(r)) continue;
        const bool gone = is_gone(r);  // before it is asked whether it has joined
        if (state(r).shrink.joined.load() > round_) {
          joined.push_back(r);
          if (state(r).shrink.call.load() != state(group_.rank).shrink.call.load()) {
            mismatched.push_back(r);
          }
        } else if (gone) {
          dead.push_back(r);
        } else {
          awaited.push_back(r);
          if (state(r).shrink.gave_up.load() > first_round_) gave_up.push_back(r);
        }
      }
      if (const auto error = caller_.also_dead(dead)) throw *error;
      if (mismatched.empty() && awaited.empty()) {
        accept(joined);
        return true;
      }
      if (persistent.lasts(!mismatched.empty() || !gave_up.empty())) {
        throw mismatched.empty()
            ? caller_.error(ErrorKind::kMismatch,
                            caller_.names(gave_up) + " gave up, for a reason that is told there")
            : caller_.differ(mismatched);
      }
      if (caller_.is_late()) {
        // A rank that has given up may call again. All wait for another one, if there is one.
        std::vector<int> silent;
        std::ranges::set_difference(awaited, gave_up, std::back_inserter(silent));
        if (silent.empty()) silent = awaited;
        throw caller_.late(silent.empty() ? caller_.to_exclude_the_same(mismatched)
                                          : caller_.to_call(silent));
      }
    }
  }

  void accept(const std::vector<int>& joined) {
    survivors_.ranks = joined;
    const std::uint64_t key = state(joined.front()).shrink.key.load();
    survivors_.key = std::to_string(key) + "/" + std::to_string(round_);
  }

  bool make_and_vote() {
    try {
      make_(survivors_, [this] { watch(); });
    } catch (const std::exception& error) {
      // What a survivor's death or its giving up makes fail, here or at another rank, is tried
      // again.
      if (!is_open() || end_if_survivor_is_gone()) {
        last_trouble_ = error.what();
        return false;
      }
      throw;
    }
    state(group_.rank).shrink.built.store(round_ + 1);
    return true;
  }

  void watch() {
    if (!is_open() || end_if_survivor_is_gone()) {
      throw Error(ErrorKind::kPeerDied, "a survivor is gone, too");
    }
    if (caller_.is_late()) throw late_votes();
  }

  bool end_together() {
    for (Poll poll(microseconds(50), kPollEvery);; sleep(poll)) {
      // One look: between two, an open round may become a new group.
      const std::uint64_t now = verdict().load();
      if (now == made()) return true;
      if (now != 2 * round_) return false;
      if (missing_votes().empty()) {
        std::uint64_t open = 2 * round_;
        verdict().compare_exchange_strong(open, made());
        continue;
      }
      if (end_if_survivor_is_gone()) continue;
      if (caller_.is_late()) throw late_votes();
    }
  }

  bool end_if_survivor_is_gone() {
    for (const int r : survivors_.ranks) {
      const bool gone = is_gone(r);  // before it is asked whether it has voted
      if (!gone || state(r).shrink.built.load() > round_) continue;
      abort_round();
      return true;
    }
    return false;
  }

  std::vector<int> missing_votes() {
    std::vector<int> missing;
    for (const int r : survivors_.ranks) {
      if (state(r).shrink.built.load() <= round_) missing.push_back(r);
    }
    return missing;
  }
  Error late_votes() {
    const std::string before =
        last_trouble_.empty() ? "" : ". The try before this one: " + last_trouble_;
    return caller_.late(caller_.to_make_the_group(missing_votes()) + before);
  }

  static void sleep(Poll& poll) {
    check_interrupt();
    poll.sleep();
  }

  Group& group_;
  const ShrinkCaller caller_;
  const MakeGroup& make_;
  std::uint64_t first_round_ = 0;
  std::uint64_t round_;
  Survivors survivors_;
  std::string last_trouble_;  // why the round before was aborted
};

}  // namespace

Survivors shrink(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make) {
  if (group.remote_hosts() != nullptr) return group.remote_hosts()->shrink(store, call, make);
  return Shrinking(group, call, make).run();
}

void decline_to_shrink(Group& group, Store& store, const ShrinkCall& call,
                       const std::exception_ptr& error) noexcept {
  if (group.remote_hosts() != nullptr) {
    at_the_end([&] { group.remote_hosts()->decline_to_shrink(store, call, error); });
  } else {
    Shrinking(group, call, nullptr).give_up_for_later_callers();
  }
}

std::uint64_t ShrinkCaller::digest() const {
  Digest digest;
  digest.add(call_.exact ? 1 : 0);
  for (const int r : call_.excluded) digest.add(static_cast<std::uint64_t>(r));
  return digest.value();
}

bool ShrinkCaller::excludes(int rank) const {
  return std::ranges::binary_search(call_.excluded, rank);
}

std::string ShrinkCaller::who() const {
  return group_.members.name(group_.rank) + " in shrink" +
         (call_.excluded.empty() ? "" : " without " + names(call_.excluded));
}

Error ShrinkCaller::error(ErrorKind kind, const std::string& why) const {
  return {kind, who() + ": " + why};
}

Error ShrinkCaller::late(const std::string& waiting_for) const {
  return {ErrorKind::kTimeout, timed_out(who(), deadline_) + ", waiting for " + waiting_for};
}

Error ShrinkCaller::differ(const std::vector<int>& ranks) const {
  return error(ErrorKind::kMismatch,
               names(ranks) + " called it, too, but not with the same ranks to exclude");
}

std::optional<Error> ShrinkCaller::also_dead(const std::vector<int>& ranks) const {
  if (!call_.exact || ranks.empty()) return std::nullopt;
  return error(ErrorKind::kPeerDied,
               names(ranks) + (ranks.size() == 1 ? " is" : " are") +
                   " gone, too, and must be excluded, too. ringcomm.shrink() finds the dead");
}

std::string ShrinkCaller::to_call(const std::vector<int>& ranks) const {
  return names(ranks) + " to call it, too. If they never will, exclude them";
}

std::string ShrinkCaller::to_exclude_the_same(const std::vector<int>& ranks) const {
  return names(ranks) + " to exclude the same ranks";
}

std::string ShrinkCaller::to_make_the_group(const std::vector<int>& ranks) const {
  return names(ranks) + " to make the new group";
}

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

}  // namespace ringcomm::shm
