// A library for LD_PRELOAD that makes one allocation, thread creation or system call of one other
// library fail, the n-th that it comes to.
//
// What counts is what the library asks for itself, or through libstdc++, and the memory of tensors
// that it has torch make: all else that torch and Python ask for is theirs.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "../cpp/failing_calls.h"

namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool has(std::uintptr_t address) const { return address >= begin && address < end; }
};

Range library, standard, c10, torch_cpu;
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

// The first caller that is in none of the libraries through which it may ask.
struct Search {
  std::span<const Range> through;
  int most_frames;
  bool is_ours = false;
  int frames = 0;
};

_Unwind_Reason_Code look(_Unwind_Context* context, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  const std::uintptr_t address = _Unwind_GetIP(context);
  if (++search.frames > search.most_frames) return _URC_END_OF_STACK;
  if (library.has(address)) {
    search.is_ours = true;
    return _URC_END_OF_STACK;
  }
  const bool is_through =
      std::ranges::any_of(search.through, [=](const Range& range) { return range.has(address); });
  // The first frames are this library's.
  return search.frames <= 4 || is_through ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// Whether the library has asked for what this thread is asked for now.
bool is_asked_through(std::span<const Range> libraries, int most_frames) {
  thread_local bool is_looking = false;
  if (is_looking) return false;
  is_looking = true;
  Search search{libraries, most_frames};
  _Unwind_Backtrace(look, &search);
  is_looking = false;
  return search.is_ours;
}

// pybind11 makes objects of the library's types in functions that must not throw.
bool is_in_python() {
  static const auto has_gil = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return has_gil != nullptr && has_gil() != 0;
}

bool is_watching() {
  return is_armed.load(std::memory_order_relaxed) && !(spares_python && is_in_python());
}

bool fails_here(void* caller) {
  if (!is_watching()) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (!library.has(address)) {
    if (!standard.has(address) || !is_asked_through({&standard, 1}, 12)) return false;
  }
  return points_left.fetch_sub(1) == 1;
}

bool tensor_fails_here() {
  if (!is_watching()) return false;
  const Range through[]{c10, torch_cpu};
  return is_asked_through(through, 60) && points_left.fetch_sub(1) == 1;
}

void* allocate(std::size_t nbytes, void* caller) {
  if (fails_here(caller)) return nullptr;
  return std::malloc(nbytes == 0 ? 1 : nbytes);
}

}  // namespace

bool faults::fails_at(void* caller) { return fails_here(caller); }

extern "C" {

// The library is known by a part of its path. Returns whether it is loaded.
int injector_watch(const char* part_of_path) {
  is_asked_through({}, 1);  // what that loads is loaded now
  std::pair<const char*, Range*> all[]{{part_of_path, &library},
                                       {"libstdc++", &standard},
                                       {"libc10.so", &c10},
                                       {"libtorch_cpu.so", &torch_cpu}};
  return std::ranges::all_of(all, [](auto& one) { return dl_iterate_phdr(find, &one) != 0; });
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
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = faults::next<Create>("pthread_create");
  return create(thread, attributes, body, argument);
}

// What torch allocates the memory of tensors by.
int posix_memalign(void** memory, std::size_t alignment, std::size_t nbytes) noexcept {
  if (tensor_fails_here()) return ENOMEM;
  *memory = std::aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
  return *memory == nullptr ? ENOMEM : 0;
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
