// A group whose ranks share memory, those of each host with each other; between hosts there are
// links.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deadline.h"
#include "core/device_board.h"
#include "core/group.h"
#include "shm/contention.h"
#include "shm/liveness.h"
#include "shm/remote_hosts.h"
#include "shm/segment.h"

namespace ringcomm::shm {

class DumpListener;

class Group final : public ringcomm::Group {
 public:
  // connect_hosts: makes what the group needs of other hosts. Without it Error (kInvalidArgument)
  // is thrown if there are any.
  Group(Store& store, const GroupConfig& config, const ConnectHosts& connect_hosts = nullptr);
  ~Group() override;

  // Iterations a wait spins before it yields its core: none where ranks outnumber the cores.
  int spins() const { return spins_; }
  // Then what one rank has written another often finds in the caches of the core that they share.
  bool shares_cores() const { return spins_ == 0; }

  // What its waits have seen of other processes on its cores.
  Contention& contention() { return contention_; }
  Segment& segment() { return segment_; }
  const Geometry& geometry() const { return segment_.geometry(); }
  const Placement& placement() const { return segment_.placement(); }
  int host() const { return placement().host_of[rank]; }
  // The leader of this host.
  int own_leader() const { return placement().leader_of(host()); }
  // A host that sends nothing for so long counts as gone.
  std::chrono::milliseconds heartbeat_timeout() const {
    return segment_.inter_host().heartbeat_timeout;
  }
  // Those of hosts may be the same.
  std::vector<std::string> host_names();
  // Whether that rank shares this one's memory.
  bool is_local(int peer) const { return placement().together(rank, peer); }
  // The ranks of other hosts.
  const std::vector<int>& remote() const { return remote_; }
  // The first rank of each other host.
  std::vector<int> other_leaders() const;
  // Null if there is one host.
  RemoteHosts* remote_hosts() { return remote_hosts_.get(); }

  // Before this rank uses an area of its own. Where there is no memory for it that breaks the
  // group, as the peers are about to wait for what this rank cannot write. Throws Error (kSystem).
  void use(Area area) {
    if (!segment_.made(rank, area)) make(area);
  }

  // After what others may wait for.
  void ring() { segment_.state(rank).progress_bell.ring(); }
  // After what ends all waits.
  void ring_all();

  void check(const std::string& doing) override;
  bool broken() override {
    return closed_.load(std::memory_order_relaxed) ||
           segment_.header().failed.load(std::memory_order_relaxed) != 0;
  }
  Error fail(ErrorKind kind, const std::string& text) override;
  // This rank has raised for want of a thread, before anything was sent. It may make the call
  // again; others wait for it no longer than kForAnother.
  static constexpr std::chrono::seconds kForAnother{2};
  void note_unmade();
  void note_made() {
    std::atomic<std::int64_t>& since = segment_.state(rank).unmade_since;
    if (since.load(std::memory_order_relaxed) != 0) since.store(0, std::memory_order_release);
  }
  bool has_unmade(int peer, std::string* how);
  // Breaks the group because this rank cannot go on, mostly for want of memory; the other ranks
  // raise the reason. doing() returns the name of the call. It is not asked if memory is short.
  template <typename Doing>
  void fail_with(const std::exception_ptr& error, Doing doing) noexcept {
    if (broken()) return;
    try {
      fail(ErrorKind::kSystem, members.name(rank) + " in " + doing() + ": " + what_of(error));
    } catch (...) {
      record_failure(rank, ErrorKind::kSystem, "there is not enough memory");
    }
  }
  // What broke the group on another host breaks it on this one.
  void adopt_failure(int reporter, ErrorKind kind, const std::string& text);
  // The kind of the error that broke the group.
  std::optional<ErrorKind> failure();
  Liveness& liveness() { return liveness_; }
  bool gone(int peer, std::string* how) override;
  bool has_ended(int peer) override { return is_local(peer) && segment_.has_ended(peer); }
  std::string describe_peer(int peer) override;
  bool spans_hosts() const override { return placement().num_hosts() > 1; }
  DeviceBoard& board() override { return board_; }
  DeviceState& device_state(int rank) override { return segment_.state(rank).device; }
  DeviceArea* device_area(int rank) override {
    return segment_.made(rank, Area::kDevice) ? &segment_.device_area(rank) : nullptr;
  }
  DeviceArea& make_device_area(int owner) override {
    owner == rank ? use(Area::kDevice) : segment_.make(Area::kDevice, owner);
    return segment_.device_area(owner);
  }

  // Flight records of the other ranks: shm/dump_listener.h.
  //
  // From now on a thread calls write(), which must not throw, when a rank asks for records. Where
  // no thread can be had, no rank waits for this one's record. To be called once, at most.
  void answer_dump_requests(std::function<void()> write);
  // Asks all ranks for their records, and returns the number of the request. Any thread.
  std::uint32_t request_dumps();
  // Whether all ranks but this one have written their records since, as far as they can.
  bool has_dumps(std::uint32_t request);
  // A rank of another host has asked.
  void adopt_dump_request(std::uint32_t request);

  // What the group is called from now on. To be called before another thread uses it.
  void rename(const std::string& name);

  // Later calls of this rank raise `reason`, and peers that would wait for this rank raise, too.
  // Any thread; the first reason stays. It may be called with kAborted and then with kLeft.
  void close(const std::string& reason, Closed how = Closed::kLeft);

 private:
  void connect(const ConnectHosts& connect_hosts);
  void make(Area area);
  bool record_failure(int reporter, ErrorKind kind, std::string_view text);
  Error first_failure(const std::string& doing, const std::string& more);

  Segment segment_;
  const int spins_;
  Contention contention_;
  Liveness liveness_;
  DeviceBoard board_;
  std::mutex close_mutex_;
  std::atomic<bool> closed_{false};
  std::string close_reason_;
  std::vector<int> remote_;
  std::unique_ptr<RemoteHosts> remote_hosts_;
  std::unique_ptr<DumpListener> dump_listener_;
};

}  // namespace ringcomm::shm
