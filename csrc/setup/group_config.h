// The settings of a group that is to be made: those of one rank, and those between its hosts.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/group.h"
#include "core/policy.h"
#include "plan/network.h"

namespace ringcomm {

// How long a host may be silent where nothing else is said.
inline constexpr std::chrono::milliseconds kHeartbeatTimeout{4000};
// How long it may be silent before its first status message, if its heartbeat timeout is not
// longer: many hosts take their time to connect.
inline constexpr std::chrono::milliseconds kFirstHeartbeatTimeout{30000};

// What the ranks of a group use between their hosts. Rank 0 sends it to all, so that they agree.
struct InterHostConfig {
  std::string engine = {};  // carries bytes; empty: there is one host, or the ranks leave it open
  Link link = {};
  // A host that sends nothing for so long is taken for gone.
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;

  std::string text() const;
  // Nothing if it is no such text.
  static std::optional<InterHostConfig> read(std::string_view text);
};

// What a rank knows of the group before it has met the others.
struct GroupConfig {
  int rank;
  int world_size;
  std::chrono::milliseconds timeout;
  Members members = {};
  // Whether it is known from elsewhere, such as a larger group, that a rank will never come.
  std::function<bool(int rank, std::string* how)> gone = {};
  // What its user calls its host. Ranks that give different names never share memory; those that
  // give the same one may. Empty: the set-up finds out whether they do.
  std::string host = {};
  // What can carry bytes from here to other hosts, the best first; asked only if there are some.
  // Null: the ranks need not agree on that.
  std::function<std::vector<std::string>()> engines = {};
  // Called on a rank that fails when other hosts may have the group already. They find `why` where
  // they look for this rank's address (hosts/address.h) in the meeting of that name. May throw.
  std::function<void(const std::string& meeting, const std::string& why)> decline = {};
  // The network between hosts, and how long one of them may be silent; rank 0's count.
  Link link = {};
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;
  // The rules that the first rank of a host gives to the others.
  std::vector<TunedRule> tuned = {};
};

// "the group "tp" of 4 ranks"
std::string describe(const GroupConfig& config);

}  // namespace ringcomm
