// Groups whose ranks are threads of this process, on hosts that are played: each has a memory of
// its own, and between them is the tests' network.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory_network.h"
#include "memory_store.h"

namespace ranks {

// Runs body for all ranks of a new group, with each rank's communicator. Rank 0 is given `link` and
// `heartbeat_timeout`.
void on_hosts(const std::vector<int>& host_of, const std::string& algorithm,
              const std::shared_ptr<MemoryNetwork>& network,
              const std::function<void(Communicator&)>& body, const ringcomm::Link& link = {},
              std::chrono::milliseconds heartbeat_timeout = ringcomm::kHeartbeatTimeout);

// Two hosts of two, unequal ones, round robin, one rank per host, a host with one rank.
extern const std::vector<std::vector<int>> kPlacements;

}  // namespace ranks
