// A host that makes no memfds, or has little memory for shared files. To be included by one source
// of a test program: what it defines comes before libc's.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>

namespace host {

inline std::atomic<bool> has_memfds{true};
// What ends behind this byte of a file gets no memory.
inline std::atomic<off_t> file_nbytes{std::numeric_limits<off_t>::max()};
inline std::atomic<int> no_memory{ENOSPC};  // the errno that says so

// For as long as it lives; then all is as it was.
struct Restored {
  ~Restored() {
    has_memfds = true;
    file_nbytes = std::numeric_limits<off_t>::max();
    no_memory = ENOSPC;
  }
};

}  // namespace host

extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (host::has_memfds) return static_cast<int>(syscall(SYS_memfd_create, name, flags));
  errno = ENOSYS;
  return -1;
}

extern "C" int posix_fallocate(int fd, off_t offset, off_t nbytes) {
  if (offset + nbytes > host::file_nbytes) return host::no_memory;
  return syscall(SYS_fallocate, fd, 0, offset, nbytes) == 0 ? 0 : errno;
}
