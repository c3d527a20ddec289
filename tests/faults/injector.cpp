// A library for LD_PRELOAD that makes one allocation, thread creation or system call of one other
// library fail, the n-th that it comes to.
//
// What counts is what the library asks for itself, or through libstdc++: what torch and Python ask
// for is theirs.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool has(std::uintptr_t address) const { return address >= begin && address < end; }
};

Range library, standard;
std::atomic<long> points_left{0};  // 0: nothing is to fail
std::atomic<bool> is_armed{false};
std::atomic<bool> has_threads{true};
std::atomic<bool> spares_python{false};

int find(dl_phdr_info* info, std::size_t, void* wanted) {
  const auto& [name, range] = *static_cast<std::pair<const char*, Range*>*>(wanted);
  if (std::strstr(info->dlpi_name, name) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (range->begin == 0 || begin < range->begin) range->begin = begin;
    range->end = std::max(range->end, begin + part.p_memsz);
  }
  return 1;
}

// The first caller that is not libstdc++.
struct Search {
  bool is_ours = false;
  int frames = 0;
};

_Unwind_Reason_Code look(_Unwind_Context* context, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  const std::uintptr_t address = _Unwind_GetIP(context);
  if (++search.frames > 12) return _URC_END_OF_STACK;
  if (library.has(address)) {
    search.is_ours = true;
    return _URC_END_OF_STACK;
  }
  // The first frames are this library's.
  return search.frames <= 4 || standard.has(address) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// pybind11 makes objects of the library's types in functions that must not throw.
bool is_in_python() {
  static const auto has_gil = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return has_gil != nullptr && has_gil() != 0;
}

bool fails_here(void* caller) {
  if (!is_armed.load(std::memory_order_relaxed)) return false;
  if (spares_python && is_in_python()) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (!library.has(address)) {
    if (!standard.has(address)) return false;
    thread_local bool is_looking = false;
    if (is_looking) return false;
    is_looking = true;
    Search search;
    _Unwind_Backtrace(look, &search);
    is_looking = false;
    if (!search.is_ours) return false;
  }
  return points_left.fetch_sub(1) == 1;
}

void* allocate(std::size_t nbytes, void* caller) {
  if (fails_here(caller)) return nullptr;
  return std::malloc(nbytes == 0 ? 1 : nbytes);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

// The library is known by a part of its path. Returns whether it is loaded.
int injector_watch(const char* part_of_path) {
  std::pair<const char*, Range*> wanted{part_of_path, &library}, cxx{"libstdc++", &standard};
  Search search;
  _Unwind_Backtrace(look, &search);  // what it loads is loaded now
  return dl_iterate_phdr(find, &cxx) != 0 && dl_iterate_phdr(find, &wanted) != 0;
}

void injector_arm(long point) {
  points_left = point;
  is_armed = true;
}

// Whether what is asked for with Python's lock held never fails.
void injector_spare_python(int is_spared) { spares_python = is_spared != 0; }

// Whether threads can be made.
void injector_threads(int can_be_made) { has_threads = can_be_made != 0; }

// Whether the point was reached.
int injector_disarm() {
  is_armed = false;
  return points_left <= 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  if (!has_threads || fails_here(__builtin_return_address(0))) return EAGAIN;
  static const auto create =
      next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return create(thread, attributes, body, argument);
}

int posix_fallocate(int fd, off_t offset, off_t nbytes) {
  if (fails_here(__builtin_return_address(0))) return ENOSPC;
  return syscall(SYS_fallocate, fd, 0, offset, nbytes) == 0 ? 0 : errno;
}

int memfd_create(const char* name, unsigned flags) noexcept {
  if (!fails_here(__builtin_return_address(0))) {
    return static_cast<int>(syscall(SYS_memfd_create, name, flags));
  }
  errno = EMFILE;
  return -1;
}

int ftruncate(int fd, off_t nbytes) noexcept {
  if (!fails_here(__builtin_return_address(0))) {
    return static_cast<int>(syscall(SYS_ftruncate, fd, nbytes));
  }
  errno = EIO;
  return -1;
}

void* mmap(void* at, std::size_t nbytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (!fails_here(__builtin_return_address(0))) {
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, nbytes, protection, flags, fd, offset));
  }
  errno = ENOMEM;
  return MAP_FAILED;
}

}  // extern "C"

void* operator new(std::size_t nbytes) {
  void* const memory = allocate(nbytes, __builtin_return_address(0));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t nbytes) {
  void* const memory = allocate(nbytes, __builtin_return_address(0));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t nbytes, const std::nothrow_t&) noexcept {
  return allocate(nbytes, __builtin_return_address(0));
}
void* operator new[](std::size_t nbytes, const std::nothrow_t&) noexcept {
  return allocate(nbytes, __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
