// Whether a thread that waits is to stop: asked now and then by every wait.
//
// What that means is the business of whoever embeds the library; in Python, that a signal came
// whose handler raises, such as Ctrl-C's.
#pragma once

#include <atomic>

namespace ringcomm {

// Returns, or throws what the wait is to end with.
using CheckInterrupt = void (*)();

inline std::atomic<CheckInterrupt> interrupt_hook{nullptr};

inline void check_interrupt() {
  if (const CheckInterrupt check = interrupt_hook.load(std::memory_order_relaxed)) check();
}

}  // namespace ringcomm
