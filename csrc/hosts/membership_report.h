// What hosts tell each other in a store while their group is shrunk (hosts/shrink_hosts.h), and
// what follows from all that they tell.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/members.h"

namespace ringcomm::hosts {

// Of a rank.
enum class MemberState : char {
  kNothing = '?',
  kLives = 'l',
  kJoined = 'j',  // the round
  kVoted = 'v',   // its part of the new group is made
  kSilent = 's',  // nothing is heard of its host
  kGone = 'x',
};

// What a host knows.
struct MembershipReport {
  std::uint64_t number = 0;  // another one each time, which shows that somebody is there to tell
  bool listens = false;      // to the other hosts: those it calls silent are
  std::vector<MemberState> ranks;           // all of the group
  std::map<int, std::uint64_t> calls = {};  // digests of the calls of its own that have joined

  bool says_the_same_as(const MembershipReport& other) const {
    return listens == other.listens && ranks == other.ranks && calls == other.calls;
  }
  std::string text() const;
  // Nothing if it is none of a group of so many.
  static std::optional<MembershipReport> read(const std::string& text, int world_size);
};

class MembershipReports {
 public:
  // silence: of a host that has not renewed its notice for so long there is none.
  MembershipReports(const Placement& placement, std::chrono::milliseconds heartbeat_timeout)
      : placement_(placement),
        heartbeat_timeout_(heartbeat_timeout),
        last_(placement.num_hosts()) {}

  // The host's notice is this one now.
  void take(int host, const MembershipReport& report_);
  // Since when it has been that; nothing if there is none.
  std::optional<Clock::time_point> since(int host) const;
  // Nothing if the host does not renew it.
  const MembershipReport* of(int host) const;

  // A host's own word about its ranks counts most. Where none of them tells, another host that
  // hears of it knows that they live; else they are gone, if that is told, or if they told once.
  MemberState state_of(int rank) const;
  // Of these ranks, whose hosts tell: those that hear each other's hosts, and where that can be one
  // or another part, the largest; of equal ones, that with the lowest rank.
  std::vector<int> largest_partition(const std::vector<int>& ranks) const;

 private:
  struct Last {
    MembershipReport report_;
    Clock::time_point since;
  };

  bool are_cut(int a, int b) const;

  const Placement& placement_;  // stays
  const std::chrono::milliseconds heartbeat_timeout_;
  std::vector<std::optional<Last>> last_;  // by host
};

}  // namespace ringcomm::hosts
