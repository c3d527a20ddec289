#include "hosts.h"

#include "check.h"

namespace ranks {

void on_hosts(const std::vector<int>& host_of, const std::string& algorithm,
              const std::shared_ptr<MemoryNetwork>& network,
              const std::function<void(Communicator&)>& body, const ringcomm::Link& across,
              std::chrono::milliseconds silence) {
  const Placement placement = Placement::of(host_of);
  MemoryStore store;
  on_threads(static_cast<int>(host_of.size()), [&](int r) {
    Selection selection = Selection::named(algorithm);
    ringcomm::Invitation invitation = invite(r, placement);
    if (r == 0) {
      selection.across = across;
      invitation.silence = silence;
    }
    Communicator communicator(store, invitation, selection, network->maker());
    CHECK(communicator.group().placement() == placement);
    body(communicator);
  });
}

const std::vector<std::vector<int>> kPlacements = {
    {0, 0, 1, 1}, {0, 1}, {0, 1, 0, 1, 2}, {0, 1, 2}, {0, 1, 1, 1}, {0, 0, 0, 1, 1, 2, 0, 2}};

}  // namespace ranks
