// Makes one allocation, thread creation or system call of one rank fail, the n-th that it comes to.
// To be included by one source of a test program: what it defines comes before the libraries'.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "failing_calls.h"
#include "fault_points.h"

namespace faults {

struct Start {
  void* (*body)(void*);
  void* argument;
  Victim* victim;
};

bool fails_at(void*) { return fails_here(); }

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
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = faults::next<Create>("pthread_create");
  auto* const start = static_cast<faults::Start*>(std::malloc(sizeof(faults::Start)));
  *start = {body, argument, faults::victim_here};
  return create(thread, attributes, faults::begin, start);
}
