#include "shm/peer_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
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

namespace {

// The kernel stops where it cannot go on, and the next call says why.
int read_all(std::int64_t pid, std::uint64_t address, std::byte* output, std::size_t nbytes) {
  while (nbytes > 0) {
    const iovec local{output, nbytes};
    const iovec remote{reinterpret_cast<void*>(address), nbytes};
    const ssize_t copied = process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;
    address += static_cast<std::uint64_t>(copied);
    output += copied;
    nbytes -= static_cast<std::size_t>(copied);
  }
  return 0;
}

}  // namespace

void PeerProcesses::learn(int peer, const Process& process, std::uint64_t address) {
  Reached& reached = processes_[static_cast<std::size_t>(peer)];
  reached.was_tried = true;
  const std::uint64_t here = Process::self().pid_namespace;
  const bool is_within_reach = here != 0 && process.pid_namespace == here;
  if (process.pid == 0 || !is_within_reach || !process.runs()) return;
  std::byte byte;
  if (read_all(process.pid, address, &byte, 1) == 0) reached.pid = process.pid;
}

bool PeerProcesses::can_be_read(std::uint64_t address) {
  std::byte byte;
  return read_all(getpid(), address, &byte, 1) == 0;
}

int PeerProcesses::read(int peer, std::uint64_t address, std::byte* output,
                        std::size_t nbytes) const {
  return read_all(processes_[static_cast<std::size_t>(peer)].pid, address, output, nbytes);
}

}  // namespace ringcomm::shm
