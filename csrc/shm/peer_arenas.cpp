#include "shm/peer_arenas.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <optional>

#include "core/status.h"
#include "shm/memory_file.h"

namespace ringcomm::shm {
namespace {

// The mapping outlives the descriptor.
std::optional<File> reached(const std::string& address) {
  try {
    return File::open(address);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

PeerArenas::~PeerArenas() {
  for (const Mapped& arena : arenas_) {
    if (arena.base != nullptr) munmap(arena.base, arena.nbytes);
  }
}

void PeerArenas::learn(int peer, const std::string& address) {
  Mapped& arena = arenas_[static_cast<std::size_t>(peer)];
  arena.was_tried = true;
  const std::optional<File> file = reached(address);
  struct stat status {};
  if (!file || fstat(file->descriptor(), &status) != 0) return;
  const auto nbytes = static_cast<std::size_t>(status.st_size);
  void* const base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          file->descriptor(), 0);
  if (base == MAP_FAILED) return;
  arena.base = static_cast<std::byte*>(base);
  arena.nbytes = nbytes;
}

std::byte* PeerArenas::at(int peer, std::uint64_t place, std::size_t nbytes) const {
  const Mapped& arena = arenas_[static_cast<std::size_t>(peer)];
  if (place > arena.nbytes || nbytes > arena.nbytes - place) return nullptr;
  return arena.base + place;
}

}  // namespace ringcomm::shm
