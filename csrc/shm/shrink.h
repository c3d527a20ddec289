// Going on without the dead: the living ranks of a group agree on which they are, and make a new
// one.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "shm/group.h"

namespace ringcomm::shm {

struct Survivors {
  std::vector<int> ranks;  // in the old group, ascending: their order in the new one
  std::string key;         // the same for all of them, and used for nothing else: to meet by
};

struct ShrinkCall {
  std::vector<int> excluded;  // living or dead, ascending; they do not call
  // The excluded are all that may be missing: a dead rank that is not among them is an error.
  bool exact = false;
  std::chrono::milliseconds timeout;
};

// All ranks that live and are not excluded call it. Every one of them returns the same survivors,
// and its last call of `make` has succeeded with these; or it throws:
//
//   kTimeout   living ranks that did not come in time, by name
//   kMismatch  another rank's call names other ranks to exclude; a rank gave up
//   kPeerDied  with `exact`, a rank that is dead and not excluded
//   kClosed    this rank has left the group, or the others have gone on without it
//   kSystem    the store fails
//   whatever `make` throws when no rank died
//
// After it threw, it can be called again. The old group need not work any more, but for its memory;
// if it spans hosts the ranks agree in `store` (csrc/hosts/), the one in which it has
// met. There, what one rank gives up for is thrown by all.
Survivors shrink(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make);

// This rank raises `error` before it can call shrink. The other ranks' calls raise it, too.
void decline_to_shrink(Group& group, Store& store, const ShrinkCall& call,
                       const std::exception_ptr& error) noexcept;

// A rank's call of shrink, however its group agrees: what it asks for, how long it waits, and its
// words when it raises.
class ShrinkCaller {
 public:
  ShrinkCaller(const Group& group, const ShrinkCall& call)
      : group_(group), call_(call), deadline_(Deadline::in(call.timeout)) {}

  // The digest of what it asks for, which must be the same on all ranks.
  std::uint64_t digest() const;
  bool excludes(int rank) const;
  bool is_late() const { return Clock::now() - deadline_.start > deadline_.timeout; }

  // "rank 2 in shrink without rank 1: why"
  Error error(ErrorKind kind, const std::string& why) const;
  Error late(const std::string& waiting_for) const;
  Error left() const { return error(ErrorKind::kClosed, "this rank has left the group"); }
  Error differ(const std::vector<int>& ranks) const;
  // With `exact`, if there are any.
  std::optional<Error> also_dead(const std::vector<int>& ranks) const;

  // What is waited for.
  std::string to_call(const std::vector<int>& ranks) const;
  std::string to_exclude_the_same(const std::vector<int>& ranks) const;
  std::string to_make_the_group(const std::vector<int>& ranks) const;

  std::string names(const std::vector<int>& ranks) const { return group_.members.names(ranks); }

 private:
  std::string who() const;

  const Group& group_;
  const ShrinkCall& call_;
  const Deadline deadline_;
};

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

// 64 random bits.
std::uint64_t random_number();

}  // namespace ringcomm::shm
