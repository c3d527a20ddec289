// The shared memory of one group: one file on each host, which every rank there maps whole when the
// group is made. It has addresses for the ranks of all hosts.
//
// Addresses are cheap and memory is not. The file is sparse: a rank takes memory for an area when
// it first uses it (make), by posix_fallocate, so that a lack of memory is an error and never a
// SIGBUS. Peers have the area mapped then already; they only must not touch it before. So all
// addresses are sums of constants, nothing has a name after set-up, and nothing is left behind by
// ranks that are killed. What a rank takes is its own node's memory if there are several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/group.h"
#include "setup/bootstrap.h"
#include "setup/group_config.h"
#include "setup/store.h"
#include "shm/layout.h"
#include "shm/memory_file.h"
#include "shm/usage.h"

namespace ringcomm::shm {

class Segment {
 public:
  // All ranks of a host map one file; see shm/group_setup.h. Throws Error when memory does not
  // suffice, or when a rank does not come.
  Segment(Store& store, const GroupConfig& config);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // The rank has made all else that it needs to be in the group.
  void set_used() { is_used_ = true; }
  // This rank fails for that before it has done so; the others may have their group already.
  void give_up(const std::exception_ptr& error) noexcept;

  const Geometry& geometry() const { return geometry_; }
  // The file's descriptor, which is open as long as this object lives.
  int descriptor() const { return file_.descriptor(); }
  // Found out when the group was made; all ranks have the same.
  const Placement& placement() const { return placement_; }
  // The rules that the first rank of the host has published.
  std::span<const TunedRule> tuned() {
    return std::span(header().tuned).first(std::min<std::size_t>(header().num_tuned, kMostTuned));
  }
  // How calls go, and the file of the tuning that they use, for programs that look at the group.
  void publish(std::span<const SizeClass> size_classes, std::string_view tuned_by,
               Reproducible reproducible);
  // A name that no other group has that has met through the same store.
  const std::string& name() const { return name_; }
  const InterHostConfig& inter_host() const { return inter_host_; }
  // How many lanes there are. Each has a counter and an outbox.
  int num_lanes() const { return placement_.num_hosts() > 1 ? kLanesAcrossHosts : kLanes; }
  // What this rank has made.
  const Usage& usage() const { return usage_; }

  // This rank takes the memory of an area of its own, if it has not yet, and publishes that. Throws
  // Error (kSystem). Any thread.
  void make(Area area) { make(area, rank_); }
  // Makes the area of a rank on another host, to mirror it here.
  void make(Area area, int rank);
  void make_mail_box(int to) { make_mail_box(rank_, to); }
  void make_mail_box(int from, int to);
  // This rank gives back the memory of its payloads and outboxes, and of the boxes for peers that
  // have read all its mail. While no rank is in a call; after this the other ranks' are not faulted
  // in any more.
  void give_back();
  void give_back_mail_boxes();
  // Before this rank reads the payloads or outboxes of another; only the first time it does
  // anything. Not two threads at once.
  void fault_in(Area area, int rank) {
    if ((faulted_in_[rank] & bit(area)) == 0) fault_in_first(area, rank);
  }

  // Whether it may be touched.
  bool made(int rank, Area area) {
    return (state(rank).areas.load(std::memory_order_acquire) & bit(area)) != 0;
  }
  bool mail_box_made(int from, int to) {
    return (mailed(from, to).load(std::memory_order_acquire) >> to % 64 & 1) != 0;
  }

  // Writes what has broken the group. False: something else has broken it before.
  bool record_failure(int reporter, ErrorKind kind, std::string_view text);

  // Whether a rank of this host has ended. If its process executes another program, the rank has
  // ended, too: its place in the file is not locked any more.
  bool has_ended(int rank);
  // The same in words, or an empty string.
  std::string how_ended(int rank);

  GroupHeader& header() { return at<GroupHeader>(0); }
  RankState& state(int rank) { return at<RankState>(geometry_.state_at(rank)); }
  DeviceArea& device_area(int rank) { return at<DeviceArea>(begin(geometry_.device, rank)); }
  Announcement& announcement(int rank, std::uint64_t sequence) {
    return at<Announcement>(geometry_.announcement_at(rank, sequence));
  }
  std::byte* payloads(int rank) {
    return base_ + begin(geometry_.payloads, static_cast<std::size_t>(rank));
  }
  std::byte* outbox(int rank, int lane) {
    return base_ + begin(geometry_.outboxes, rank) + lane * geometry_.outbox_nbytes;
  }
  Progress& progress(int rank, int lane) {
    return at<Progress>(begin(geometry_.announcements, rank) + 2 * geometry_.announcement_nbytes() +
                        lane * sizeof(Progress));
  }
  MailEdge& mail_edge(int from, int to) { return at<MailEdge>(mail_box(from, to)); }
  MailSlot& mail_slot(int from, int to, std::uint64_t position) {
    return at<MailSlot>(mail_box(from, to) + sizeof(MailEdge) +
                        position % kMailSlots * (sizeof(MailSlot) + geometry_.mail_slot_nbytes));
  }

 private:
  template <typename T>
  T& at(std::size_t offset) {
    return *reinterpret_cast<T*>(base_ + offset);
  }
  static std::size_t begin(const Region& region, std::size_t i) {
    return region.at + i * region.stride;
  }
  std::size_t mail_box(int from, int to) const {
    return begin(geometry_.mail, static_cast<std::size_t>(from) * geometry_.world_size + to);
  }
  static std::uint32_t bit(Area area) { return 1u << static_cast<int>(area); }
  std::atomic<std::uint64_t>& mailed(int from, int to) {
    return at<std::atomic<std::uint64_t>>(
        geometry_.mailed_at + (from * geometry_.mailed_words + to / 64) * sizeof(std::uint64_t));
  }
  bool has_lost_its_place(int rank);
  void take(Area area, std::size_t offset, std::size_t nbytes);
  bool release(Area area, std::size_t offset, std::size_t nbytes);
  void fault_in_first(Area area, int rank);
  const Region& region_of(Area area) const;
  std::size_t nbytes_of(Area area) const;
  void count(Area area, std::size_t nbytes);

  // For SegmentSetup.
  friend class SegmentSetup;
  // For the rank that opened it, before it publishes the address: at most kMostTuned.
  void set_tuned(const std::vector<TunedRule>& rules);
  // Returns its address and cookie.
  std::string open(File::Kind kind, const Members& members, const Participant& self);
  // Joins the segment that another rank has opened. False: it is out of reach.
  bool join(const std::string& address, const Members& members, const Participant& self);
  void leave();
  void map();
  void unmap();
  void introduce(const Members& members, const Participant& self);

  const int rank_;
  const std::function<void(const std::string&, const std::string&)> decline_;
  bool is_used_ = false;
  Geometry geometry_;
  Placement placement_;
  std::string name_;
  InterHostConfig inter_host_;
  Usage usage_;
  File file_;
  std::byte* base_ = nullptr;
  std::mutex making_;
  std::vector<std::uint32_t> faulted_in_;  // by rank, as RankState::areas
};

}  // namespace ringcomm::shm
