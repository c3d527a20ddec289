// Makes one allocation, thread creation or system call of one rank fail, the n-th that it comes to.
// To be included by one source of a test program: what it defines comes before the libraries'.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace faults {

inline constexpr int kNoRank = -1;

// The rank that this thread works for; threads that it starts inherit it.
inline thread_local int rank_here = kNoRank;

inline std::atomic<int> armed_rank{kNoRank};
inline std::atomic<long> points_left{0};
inline std::atomic<long> num_injected{0};
inline std::atomic<bool> has_threads{true};  // for those who work for a rank

// To be asked at each point where something may fail: whether it does now.
inline bool fails_here() {
  if (rank_here == kNoRank || armed_rank.load() != rank_here) return false;
  if (points_left.fetch_sub(1) != 1) return false;
  ++num_injected;
  return true;
}

inline void arm(int rank, long point) {
  points_left = point;
  armed_rank = rank;
}

// Whether the point was reached.
inline bool disarm() {
  armed_rank = kNoRank;
  return points_left <= 0;
}

// For as long as it lives, this thread works for the rank.
class Working {
 public:
  explicit Working(int rank) { rank_here = rank; }
  ~Working() { rank_here = kNoRank; }
};

struct Start {
  void* (*body)(void*);
  void* argument;
  int rank;
};

inline void* begin(void* start) {
  const Start here = *static_cast<Start*>(start);
  std::free(start);
  rank_here = here.rank;
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
  const bool has_threads = faults::has_threads || faults::rank_here == faults::kNoRank;
  if (!has_threads || faults::fails_here()) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  auto* const start = static_cast<faults::Start*>(std::malloc(sizeof(faults::Start)));
  *start = {body, argument, faults::rank_here};
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
