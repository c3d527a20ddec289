// What hosts write for each other to a store while their group is shrunk (shm/shrink.cpp), and
// what follows from all reports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/group.h"

namespace ringcomm::shm {

// The state of a rank.
enum class MemberState : char {
  kNothing = '?',
  kLives = 'l',
  kJoined = 'j',  // the round
  kVoted = 'v',   // its part of the new group is made
  kSilent = 's',  // nothing comes from its host
  kGone = 'x',
};

// What a host knows.
struct MembershipReport {
  std::uint64_t number = 0;  // another one each time, which shows that a rank is there to report
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
  // A host that has not renewed its report for heartbeat_timeout has none.
  MembershipReports(const Placement& placement, std::chrono::milliseconds heartbeat_timeout)
      : placement_(placement),
        heartbeat_timeout_(heartbeat_timeout),
        last_(placement.num_hosts()) {}

  // The host's report is this one now.
  void take(int host, const MembershipReport& report);
  // Since when it has been that; nothing if there is none.
  std::optional<Clock::time_point> since(int host) const;
  // Nothing if the host does not renew it.
  const MembershipReport* of(int host) const;

  // A host's own report about its ranks counts most. If it has none, another host that receives
  // from it knows that they live; else they are gone, if a report says so, or if they reported
  // once.
  MemberState state_of(int rank) const;
  // The largest set of these ranks whose hosts report and receive from each other. Among sets of
  // equal size it is the one with the lowest rank.
  std::vector<int> largest_partition(const std::vector<int>& ranks) const;

 private:
  struct Last {
    MembershipReport report;
    Clock::time_point since;
  };

  bool are_cut(int a, int b) const;

  const Placement& placement_;  // stays
  const std::chrono::milliseconds heartbeat_timeout_;
  std::vector<std::optional<Last>> last_;  // by host
};

}  // namespace ringcomm::shm
