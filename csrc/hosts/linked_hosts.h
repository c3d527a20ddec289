// The other hosts of a group, connected by an engine: csrc/hosts/ as the group sees it
// (shm/remote_hosts.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hosts/announcement_forwarder.h"
#include "hosts/engine.h"
#include "hosts/heartbeat.h"
#include "shm/remote_hosts.h"

namespace ringcomm::hosts {

class LinkedHosts final : public RemoteHosts {
 public:
  LinkedHosts(Group& group, std::unique_ptr<links::Engine> engine);

  bool advance() override { return engine_->advance(); }
  void progress() override { engine_->progress(); }
  bool flushed() override { return engine_->flushed(); }
  void sleep(std::chrono::microseconds longest) override { engine_->sleep(longest); }
  std::string failure(int peer) override { return engine_->failure(peer); }

  void forward_announcements() override {
    if (forwarder_) forwarder_->step();
  }
  bool has_forwarded(std::uint64_t sequence) override {
    return !forwarder_ || forwarder_->has_sent(sequence);
  }
  bool forwards_after(const std::vector<int>& ranks) override {
    return !forwarder_ || forwarder_->awaits_only(ranks);
  }

  std::unique_ptr<RemoteSlices> make_slices(int num_lanes) override;
  std::unique_ptr<RemoteMailbox> make_mailbox() override;
  void leave() override {
    if (heartbeat_) heartbeat_->leave();
  }

 private:
  Group& group_;
  const std::unique_ptr<links::Engine> engine_;
  std::unique_ptr<AnnouncementForwarder> forwarder_;  // the leader's
  std::unique_ptr<Heartbeat> heartbeat_;              // the leader's
};

// How a group connects by that engine. Without one it cannot span hosts.
ConnectHosts connect(links::MakeEngine make_engine);

}  // namespace ringcomm::hosts
