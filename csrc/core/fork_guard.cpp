#include "core/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace ringcomm {

int ForkGuard::generation() {
  static std::atomic<int> forks{0};
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace ringcomm
