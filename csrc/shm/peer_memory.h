// What this rank can reach of the memory of the group's other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/process.h"

namespace ringcomm::shm {

// The arenas of a group's ranks, as this rank has mapped them.
class PeerArenas {
 public:
  explicit PeerArenas(int world_size) : arenas_(static_cast<std::size_t>(world_size)) {}
  ~PeerArenas();
  PeerArenas(const PeerArenas&) = delete;
  PeerArenas& operator=(const PeerArenas&) = delete;

  // Maps the file of a peer's arena, by File::address; tried once. Where it is out of reach, or
  // cannot be mapped, the peer stays unknown.
  void learn(int peer, const std::string& file);
  bool has_learnt(int peer) const { return arenas_[static_cast<std::size_t>(peer)].was_tried; }
  bool knows(int peer) const { return arenas_[static_cast<std::size_t>(peer)].base != nullptr; }

  // Null: so many bytes from there are not in the peer's arena.
  std::byte* at(int peer, std::uint64_t place, std::size_t nbytes) const;

 private:
  struct Mapped {
    std::byte* base = nullptr;
    std::size_t nbytes = 0;
    bool was_tried = false;
  };
  std::vector<Mapped> arenas_;  // by rank
};

// The processes of a group's ranks. The kernel copies out of their memory into this rank's
// (process_vm_readv), if that is allowed.
class PeerProcesses {
 public:
  explicit PeerProcesses(int world_size) : processes_(static_cast<std::size_t>(world_size)) {}

  // Finds out whether the peer's memory can be read, by the byte at that address; tried once. Where
  // it cannot, as containers and security modules may forbid it, the peer stays unknown.
  void learn(int peer, const Process& process, std::uint64_t address);
  bool has_learnt(int peer) const { return processes_[static_cast<std::size_t>(peer)].was_tried; }
  bool knows(int peer) const { return processes_[static_cast<std::size_t>(peer)].pid != 0; }

  // Whether the kernel would let peers read at that address of this process: not where a device's
  // memory is mapped, or memory is kept secret.
  static bool can_be_read(std::uint64_t address);

  // Copies from a peer that is known. Returns 0, or errno.
  int read(int peer, std::uint64_t address, std::byte* output, std::size_t nbytes) const;

 private:
  struct Reached {
    std::int64_t pid = 0;
    bool was_tried = false;
  };
  std::vector<Reached> processes_;  // by rank
};

struct PeerMemory {
  explicit PeerMemory(int world_size) : arenas(world_size), processes(world_size) {}

  PeerArenas arenas;        // mapped: read and written
  PeerProcesses processes;  // read, by the kernel
};

}  // namespace ringcomm::shm
