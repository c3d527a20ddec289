// A rank's call of shrink, however its group agrees: what it asks for, how long it waits, and its
// words when it raises.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "shm/shrink.h"

namespace ringcomm::shm {

class ShrinkCaller {
 public:
  ShrinkCaller(const Group& group, const ShrinkCall& call)
      : group_(group), call_(call), deadline_(Deadline::in(call.timeout)) {}

  // Of what it asks for, which is to be the same on all ranks.
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

// What may pass by itself: a rank whose call differs calls again, and rightly.
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

// 64 bits that nobody else has.
std::uint64_t random_number();

}  // namespace ringcomm::shm
