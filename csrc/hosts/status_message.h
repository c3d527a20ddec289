// What the leader of a host reports of its ranks to the other hosts, again and again: their states,
// and why the group failed, if it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shm/group.h"
#include "shm/layout.h"

namespace ringcomm::hosts {

// What of a RankState means anything on another host. Messages are seen from their own.
struct RankStatus {
  // What others may wait for: it is sent at once.
  struct Urgent {
    Closed closed;
    std::uint32_t ended;
    std::uint64_t barrier, rejected_barrier;
    std::uint32_t device_unique_ids;
    std::uint32_t device_joining;
    DeviceBoard::Closing device_closing;
    std::uint32_t dump_listens, dump_answered;

    bool operator==(const Urgent&) const = default;
  };

  std::int32_t rank;
  Urgent urgent;
  Process process;
  std::int32_t waits_for;
  std::int64_t waits_since;  // nanoseconds ago, as all that is named so
  std::uint64_t completed, nbytes, held;
  std::uint64_t device_enqueued, device_completed, device_held;
  DeviceBoard::Settings device_settings;
};

struct FailureStatus {
  std::uint32_t failed;  // else what follows means nothing
  ErrorKind kind;
  std::int32_t reporter;
  FailureText text;
};

// What a rank gives others for their devices to meet, and what it has enqueued on its own: see
// core/device_board.h.
struct UniqueIdStatus {
  std::int32_t from, to;
  DeviceBoard::UniqueId unique_id;
};
struct CallStatus {
  std::int32_t rank;
  Call call;
};

// All that is reported. `ranks` are those of this host.
struct StatusMessage {
  static constexpr std::size_t kMostOfDevices = 64;  // unique ids in one message, and calls

  FailureStatus failure;
  std::uint32_t dump_request;  // the last one that this host knows of
  std::vector<RankStatus> ranks;
  std::vector<UniqueIdStatus> unique_ids;  // that have not been sent before, as calls
  std::vector<CallStatus> calls;

  static std::size_t most_nbytes(std::size_t num_ranks);
  // Without what is of devices.
  static StatusMessage of(Group& group, const std::vector<int>& ranks);
  // Throws std::invalid_argument if it is none of such ranks.
  static StatusMessage read(std::span<const std::byte> bytes, const Group& group, int host);
  std::vector<std::byte> written() const;

  // What others wait for is the same.
  bool is_as_urgent_as(const StatusMessage& other) const;
  // Into the memory of this host.
  void mirror(Group& group) const;
};

}  // namespace ringcomm::hosts
