// One POSIX shared-memory segment per group, mapped by every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "shm/layout.h"
#include "store.h"

namespace ringcomm::shm {

class Segment {
 public:
  // Rank 0 creates the segment and every rank maps it; the name travels through the store. Rank 0
  // unlinks it once all have mapped it, so a killed job leaves nothing in /dev/shm. Throws Error
  // when the ranks are not on one host, when /dev/shm is too small, or when a rank does not come.
  Segment(Store& store, int rank, int world_size, std::chrono::milliseconds timeout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Geometry& geometry() const { return geometry_; }

  GroupHeader& header() { return at<GroupHeader>(0); }
  RankState& state(int rank) {
    return at<RankState>(geometry_.states_at + rank * sizeof(RankState));
  }
  DeviceCall& device_call(int rank, std::uint64_t sequence) {
    const std::size_t i = static_cast<std::size_t>(rank) * kDeviceCalls + sequence % kDeviceCalls;
    return at<DeviceCall>(geometry_.device_calls_at + i * sizeof(DeviceCall));
  }
  DeviceGreeting& device_greeting(int from, int to) {
    const std::size_t i = static_cast<std::size_t>(from) * world() + to;
    return at<DeviceGreeting>(geometry_.device_greetings_at + i * sizeof(DeviceGreeting));
  }
  Announcement& announcement(int rank, std::uint64_t sequence) {
    const std::size_t stride = sizeof(Announcement) + geometry_.eager_nbytes;
    return at<Announcement>(geometry_.announcements_at + (2 * rank + sequence % 2) * stride);
  }
  Edge& edge(int from, int to, int lane) {
    const std::size_t i = (static_cast<std::size_t>(from) * world() + to) * kLanes + lane;
    return at<Edge>(geometry_.edges_at + i * sizeof(Edge));
  }
  std::byte* outbox(int rank, int lane) {
    return base_ + geometry_.outboxes_at +
           (static_cast<std::size_t>(rank) * kLanes + lane) * geometry_.outbox_nbytes;
  }
  MailEdge& mail_edge(int from, int to) {
    const std::size_t i = static_cast<std::size_t>(from) * world() + to;
    return at<MailEdge>(geometry_.mail_edges_at + i * sizeof(MailEdge));
  }
  MailSlot& mail_slot(int from, int to, std::uint64_t position) {
    const std::size_t i =
        (static_cast<std::size_t>(from) * world() + to) * kMailSlots + position % kMailSlots;
    return at<MailSlot>(geometry_.mail_slots_at +
                        i * (sizeof(MailSlot) + geometry_.mail_slot_nbytes));
  }

 private:
  template <typename T>
  T& at(std::size_t offset) {
    return *reinterpret_cast<T*>(base_ + offset);
  }
  int world() const { return geometry_.world_size; }

  void create(const std::string& name);
  void open(const std::string& name);
  void map(int fd, const std::string& name);
  void introduce(int rank);

  Geometry geometry_;
  std::byte* base_ = nullptr;
};

}  // namespace ringcomm::shm
