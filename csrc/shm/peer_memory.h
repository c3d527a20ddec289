// What this rank can reach of the memory of the group's other ranks.
#pragma once

#include "shm/peer_arenas.h"
#include "shm/peer_processes.h"

namespace ringcomm::shm {

struct PeerMemory {
  explicit PeerMemory(int world_size) : arenas(world_size), processes(world_size) {}

  PeerArenas arenas;        // mapped: read and written
  PeerProcesses processes;  // read, by the kernel
};

}  // namespace ringcomm::shm
