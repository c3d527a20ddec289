#include "hosts/linked_hosts.h"

#include <utility>

#include "hosts/remote_mailbox.h"
#include "hosts/remote_slices.h"
#include "shm/group.h"

namespace ringcomm::hosts {

LinkedHosts::LinkedHosts(Group& group, std::unique_ptr<links::Engine> engine)
    : group_(group), engine_(std::move(engine)) {
  if (group.rank != group.own_leader()) return;
  forwarder_ = std::make_unique<AnnouncementForwarder>(group, *engine_);
  heartbeat_ = std::make_unique<Heartbeat>(group, *engine_, *forwarder_);
}

std::unique_ptr<RemoteSlices> LinkedHosts::make_slices(int num_lanes) {
  return std::make_unique<LinkedSlices>(group_, *engine_, num_lanes);
}

std::unique_ptr<RemoteMailbox> LinkedHosts::make_mailbox() {
  return std::make_unique<LinkedMailbox>(group_, *engine_);
}

ConnectHosts connect(links::MakeEngine make_engine) {
  if (!make_engine) return nullptr;
  return [make_engine = std::move(make_engine)](Group& group) {
    Segment& segment = group.segment();
    return std::make_unique<LinkedHosts>(
        group,
        make_engine(segment.inter_host().engine, segment.name(), group.rank, group.world_size));
  };
}

}  // namespace ringcomm::hosts
