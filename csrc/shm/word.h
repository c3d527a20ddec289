// What the leader of a host tells the other hosts of its ranks, again and again: their states, and
// why the group failed, if it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shm/group.h"
#include "shm/layout.h"

namespace ringcomm::shm {

// What of a RankState means anything on another host. Messages are seen from their own.
struct RankWord {
  // What others may wait for: it is told at once.
  struct Urgent {
    Closed closed;
    std::uint32_t ended;
    std::uint64_t barrier, rejected_barrier;
    std::uint32_t device_greetings;
    std::uint32_t device_joining;
    Board::Closing device_closing;
    std::uint32_t dump_listens, dump_answered;

    bool operator==(const Urgent&) const = default;
  };

  std::int32_t rank;
  Urgent urgent;
  Process process;
  std::int32_t waits_for;
  std::int64_t waits_since;  // nanoseconds ago, as all that is named so
  std::uint64_t completed, nbytes, held;
  std::uint64_t device_enqueued, device_completed;
  Board::Settings device_settings;
};

struct FailureWord {
  std::uint32_t failed;  // else what follows means nothing
  ErrorKind kind;
  std::int32_t reporter;
  FailureText text;
};

// What a rank gives others for their devices to meet, and what it has enqueued on its own: see
// core/board.h.
struct GreetingWord {
  std::int32_t from, to;
  Board::Greeting greeting;
};
struct CallWord {
  std::int32_t rank;
  Call call;
};

// All that is told. `ranks` are those of this host.
struct Word {
  static constexpr std::size_t kMostOfDevices = 64;  // greetings in one word, and calls

  FailureWord failure;
  std::uint32_t dump_request;  // the last one that this host knows of
  std::vector<RankWord> ranks;
  std::vector<GreetingWord> greetings;  // that have not been told before, as calls
  std::vector<CallWord> calls;

  static std::size_t most_nbytes(std::size_t num_ranks);
  // Without what is of devices.
  static Word of(Group& group, const std::vector<int>& ranks);
  // Throws std::invalid_argument if it is none of such ranks.
  static Word read(std::span<const std::byte> bytes, const Group& group, int host);
  std::vector<std::byte> written() const;

  // What others wait for is the same.
  bool is_as_urgent_as(const Word& other) const;
  // Into the memory of this host.
  void mirror(Group& group) const;
};

}  // namespace ringcomm::shm
