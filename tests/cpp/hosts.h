// Groups whose ranks are threads of this process, on hosts that are played: each has a memory of
// its own, and between them is the tests' network.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "memory_engine.h"
#include "memory_store.h"

namespace ranks {

// All ranks of a new group; body gets each rank's communicator. `across`: as rank 0 is told.
inline void on_hosts(const std::vector<int>& host_of, const std::string& algorithm,
                     const std::shared_ptr<MemoryNetwork>& network,
                     const std::function<void(Communicator&)>& body,
                     const ringcomm::Link& across = {}) {
  const Placement placement = Placement::of(host_of);
  MemoryStore store;
  on_threads(static_cast<int>(host_of.size()), [&](int r) {
    Selection selection = Selection::named(algorithm);
    if (r == 0) selection.across = across;
    Communicator communicator(store, invite(r, placement), selection, network->maker());
    CHECK(communicator.group().placement() == placement);
    body(communicator);
  });
}

// Two hosts of two, unequal ones, round robin, one rank per host, a host with one rank.
inline const std::vector<std::vector<int>> kPlacements = {
    {0, 0, 1, 1}, {0, 1}, {0, 1, 0, 1, 2}, {0, 1, 2}, {0, 1, 1, 1}, {0, 0, 0, 1, 1, 2, 0, 2}};

}  // namespace ranks
