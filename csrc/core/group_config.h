// What a rank knows of the group that it is to make, before it has met the others.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/inter_host_config.h"
#include "core/members.h"
#include "core/tuning.h"
#include "plan/network.h"

namespace ringcomm {

struct GroupConfig {
  int rank;
  int world_size;
  std::chrono::milliseconds timeout;
  Members members = {};
  // Whether it is known from elsewhere, such as a larger group, that a rank will never come.
  std::function<bool(int rank, std::string* how)> gone = {};
  // What its user calls its host. Ranks that give different names never share memory; those that
  // give the same one may. Empty: whether they do is found out.
  std::string host = {};
  // What can carry bytes from here to other hosts, the best first; asked only where there are some.
  // Null: nobody needs to agree on that.
  std::function<std::vector<std::string>()> engines = {};
  // Of a rank that fails when other hosts may have the group already. They find `why` where they
  // look for this rank's address (links/address.h) in the meeting of that name. May throw.
  std::function<void(const std::string& meeting, const std::string& why)> decline = {};
  // The network between hosts, and how long one of them may be silent; rank 0's count.
  Link link = {};
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;
  // What the first rank of a host tells the others to go by.
  std::vector<TunedRule> tuned = {};
};

// "the group "tp" of 4 ranks"
std::string describe(const GroupConfig& config);

}  // namespace ringcomm
