// The system calls that a test makes fail: those of the C library that the core makes and that can
// fail. To be included by one source, which says when one does: what this defines comes before the
// C library's.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

namespace faults {

// Whether the call that `caller` makes now fails.
bool fails_at(void* caller);

inline bool fails_with(int code, void* caller) {
  if (!fails_at(caller)) return false;
  errno = code;
  return true;
}

// The function that would be called if there were none here.
template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace faults

// Defines a function that fails with errno `code`, or is the C library's. `specifiers`: noexcept,
// as the C library's is, or nothing.
#define FAILING(result, name, parameters, arguments, specifiers, code)      \
  extern "C" result name parameters specifiers {                            \
    if (faults::fails_with(code, __builtin_return_address(0))) return -1;   \
    static const auto next_##name = faults::next<result parameters>(#name); \
    return next_##name arguments;                                           \
  }

FAILING(int, memfd_create, (const char* name, unsigned flags), (name, flags), noexcept, EMFILE)
FAILING(int, shm_open, (const char* name, int flags, mode_t mode), (name, flags, mode), , EMFILE)
FAILING(int, ftruncate, (int file, off_t nbytes), (file, nbytes), noexcept, EIO)
FAILING(int, fallocate, (int file, int mode, off_t offset, off_t nbytes),
        (file, mode, offset, nbytes), , EOPNOTSUPP)
FAILING(int, fchmod, (int file, mode_t mode), (file, mode), noexcept, EPERM)
FAILING(int, fstat, (int file, struct stat* status), (file, status), noexcept, EIO)
FAILING(int, stat, (const char* path, struct stat* status), (path, status), noexcept, EACCES)
FAILING(ssize_t, readlink, (const char* path, char* target, std::size_t nbytes),
        (path, target, nbytes), noexcept, EACCES)
FAILING(ssize_t, read, (int file, void* data, std::size_t nbytes), (file, data, nbytes), , EIO)
FAILING(ssize_t, process_vm_readv,
        (pid_t pid, const iovec* local, unsigned long num_local, const iovec* remote,
         unsigned long num_remote, unsigned long flags),
        (pid, local, num_local, remote, num_remote, flags), noexcept, EPERM)
FAILING(int, sched_getaffinity, (pid_t pid, std::size_t nbytes, cpu_set_t* cores),
        (pid, nbytes, cores), noexcept, EINVAL)
FAILING(int, kill, (pid_t pid, int signal), (pid, signal), noexcept, EPERM)
FAILING(int, madvise, (void* at, std::size_t nbytes, int advice), (at, nbytes, advice), noexcept,
        EINVAL)

#undef FAILING

extern "C" int posix_fallocate(int file, off_t offset, off_t nbytes) {
  if (faults::fails_at(__builtin_return_address(0))) return ENOSPC;
  return syscall(SYS_fallocate, file, 0, offset, nbytes) == 0 ? 0 : errno;
}

extern "C" void* mmap(void* at, std::size_t nbytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  if (faults::fails_with(ENOMEM, __builtin_return_address(0))) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, nbytes, protection, flags, file, offset));
}

extern "C" int open(const char* path, int flags, ...) {
  if (faults::fails_with(EMFILE, __builtin_return_address(0))) return -1;
  va_list rest;
  va_start(rest, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" int fcntl(int file, int command, ...) {
  if (faults::fails_with(ENOLCK, __builtin_return_address(0))) return -1;
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  static const auto next_fcntl = faults::next<int(int, int, ...)>("fcntl");
  return next_fcntl(file, command, argument);
}
