// Makes one allocation, thread creation or system call of one rank fail, the n-th that it comes to.
// To be included by one source of a test program: what it defines comes before the libraries'.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "fault_points.h"

namespace faults {

struct Start {
  void* (*body)(void*);
  void* argument;
  Victim* victim;
};

inline void* begin(void* start) {
  const Start here = *static_cast<Start*>(start);
  std::free(start);
  victim_here = here.victim;
  return here.body(here.argument);
}

}  // namespace faults

void* operator new(std::size_t nbytes) {
  void* const memory = faults::fails_here() ? nullptr : std::malloc(nbytes == 0 ? 1 : nbytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t nbytes) { return operator new(nbytes); }
void* operator new(std::size_t nbytes, const std::nothrow_t&) noexcept {
  return faults::fails_here() ? nullptr : std::malloc(nbytes == 0 ? 1 : nbytes);
}
void* operator new[](std::size_t nbytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(nbytes, nothrow);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  const bool has_threads = faults::victim_here == nullptr || faults::victim_here->has_threads;
  if (!has_threads || faults::fails_here()) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  auto* const start = static_cast<faults::Start*>(std::malloc(sizeof(faults::Start)));
  *start = {body, argument, faults::victim_here};
  return create(thread, attributes, faults::begin, start);
}

extern "C" int posix_fallocate(int fd, off_t offset, off_t nbytes) {
  if (faults::fails_here()) return ENOSPC;
  return syscall(SYS_fallocate, fd, 0, offset, nbytes) == 0 ? 0 : errno;
}

extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (!faults::fails_here()) return static_cast<int>(syscall(SYS_memfd_create, name, flags));
  errno = EMFILE;
  return -1;
}

extern "C" int ftruncate(int fd, off_t nbytes) noexcept {
  if (!faults::fails_here()) return static_cast<int>(syscall(SYS_ftruncate, fd, nbytes));
  errno = EIO;
  return -1;
}

extern "C" void* mmap(void* at, std::size_t nbytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
  if (!faults::fails_here()) {
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, nbytes, protection, flags, fd, offset));
  }
  errno = ENOMEM;
  return MAP_FAILED;
}
