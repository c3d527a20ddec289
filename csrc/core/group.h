// A group: the names of its ranks, which of them share a host, and how it is used by what needs no
// more of it: whether it still works, and what is known of a peer that is waited for. How that is
// known depends on the implementation; shm/group.h uses shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"

namespace ringcomm {

// The ranks of a group as its users name them: by the ranks of the default group.
struct Members {
  std::string group = {};                        // its name, or empty
  std::vector<std::uint64_t> global_ranks = {};  // by rank; empty: they are the same

  std::uint64_t global(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return r < global_ranks.size() ? global_ranks[r] : r;
  }

  // The rank of this number there, if it is in the group.
  std::optional<int> find(std::uint64_t global_rank, int world_size) const;

  // "rank 2" if that is its number in the group, too, else "rank 2 (rank 1 of group tp)".
  std::string name(int rank) const;
  // "no rank", "rank 2", "ranks 0, 2 and 5", "ranks 2 and 3 (ranks 0 and 1 of group tp)"
  std::string names(const std::vector<int>& ranks) const;

 private:
  std::string in_group(const std::vector<int>& ranks) const;
};

// Which ranks of a group are on which host, that is, share memory.
struct Placement {
  std::vector<int> host_of = {};  // by rank; hosts are numbered in the order of their first ranks

  // The placement of `world_size` ranks on one host.
  static Placement one_host(int world_size) { return {std::vector<int>(world_size, 0)}; }
  // From any numbers or names that are the same for ranks of one host.
  template <typename Names>
  static Placement of(const Names& names);

  int num_hosts() const;
  bool together(int a, int b) const { return host_of[a] == host_of[b]; }
  // Whether there is such a rank, and on that host.
  bool is_on(int host, int rank) const;
  // Ascending. The first is the host's leader.
  std::vector<int> ranks_on(int host) const;
  int leader_of(int host) const;

  bool operator==(const Placement&) const = default;
};

template <typename Names>
Placement Placement::of(const Names& names) {
  Placement placement;
  std::vector<typename Names::value_type> known;
  for (const auto& name : names) {
    std::size_t host = 0;
    while (host < known.size() && !(known[host] == name)) ++host;
    if (host == known.size()) known.push_back(name);
    placement.host_of.push_back(static_cast<int>(host));
  }
  return placement;
}

class DeviceBoard;
struct DeviceState;
struct DeviceArea;

class Group {
 public:
  Group(int rank, int world_size, Members members)
      : rank(rank), world_size(world_size), members(std::move(members)) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const int rank;
  const int world_size;
  Members members;  // its name may be given before another thread uses the group

  // Throws what broke the group, if anything has.
  virtual void check(const std::string& doing) = 0;
  virtual bool broken() = 0;

  // Breaks the group for all ranks: `text` says what happened, and every rank that waits or calls
  // later raises it. Data may be half moved by then, so a broken group stays broken, for the first
  // reason. Returns the error for this rank to throw, which contains that reason.
  virtual Error fail(ErrorKind kind, const std::string& text) = 0;

  // Whether the peer has left or its process has ended, and so will never do anything again.
  virtual bool gone(int peer, std::string* how) = 0;
  // Whether its process has ended, and with it what the process did on a device.
  virtual bool has_ended(int peer) = 0;

  // What is known of a rank that is being waited for, for an error message: "rank 2 (its last
  // complete collective is #16), which waits for rank 3 (its process 4711 has ended (on host
  // node1))".
  virtual std::string describe_peer(int peer) = 0;

  // Whether the ranks are on several hosts.
  virtual bool spans_hosts() const = 0;

  // Where the ranks publish what they do with their devices (core/device_board.h), and in which
  // memory: a rank's area is null until it is made. A rank makes its own, and those of ranks that
  // do not share its memory; that may throw Error (kSystem).
  virtual DeviceBoard& board() = 0;
  virtual DeviceState& device_state(int rank) = 0;
  virtual DeviceArea* device_area(int rank) = 0;
  virtual DeviceArea& make_device_area(int rank) = 0;
};

}  // namespace ringcomm
