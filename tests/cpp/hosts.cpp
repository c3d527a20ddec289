#include "hosts.h"

#include "check.h"

namespace ranks {

void on_hosts(const std::vector<int>& host_of, const std::string& algorithm,
              const std::shared_ptr<MemoryNetwork>& network,
              const std::function<void(Communicator&)>& body, const ringcomm::Link& link,
              std::chrono::milliseconds heartbeat_timeout) {
  const Placement placement = Placement::of(host_of);
  MemoryStore store;
  on_threads(static_cast<int>(host_of.size()), [&](int r) {
    Selection selection = Selection::named(algorithm);
    ringcomm::GroupConfig config = group_config(r, placement);
    if (r == 0) {
      selection.link = link;
      config.heartbeat_timeout = heartbeat_timeout;
    }
    Communicator communicator(store, config, selection, network->connect_hosts());
    CHECK(communicator.group().placement() == placement);
    body(communicator);
  });
}

const std::vector<std::vector<int>> kPlacements = {
    {0, 0, 1, 1}, {0, 1}, {0, 1, 0, 1, 2}, {0, 1, 2}, {0, 1, 1, 1}, {0, 0, 0, 1, 1, 2, 0, 2}};

}  // namespace ranks
