// The arenas of a group's ranks, as this rank has mapped them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ringcomm::shm {

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

}  // namespace ringcomm::shm
