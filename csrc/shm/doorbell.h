// How a rank that has waited long sleeps until what it waits for has come.
//
// A rank that changes what others wait for rings afterwards. As long as no rank listens, that is a
// read of one word, which then lies in the ringer's own cache.
//
//   listener                           ringer
//     DoorbellWaiter listening(bell);    change what is waited for
//     while (!ready())                   bell.ring();
//       listening.sleep(longest);
//
// Invariant: what rings after the listener has begun to listen, or after it has slept last, ends
// its next sleep at once; so a change is seen by ready() or ends a sleep. There is one gap: the
// ringer's read may overtake its own change on the way to memory, by some nanoseconds, and a fence
// against that would cost every change more than all listeners gain. So no rank sleeps without a
// limit.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ringcomm::shm {

// In shared memory; zeros are a bell.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> listeners;
  std::atomic<std::uint32_t> rings;  // a futex

  void ring() {
    if (listeners.load(std::memory_order_relaxed) != 0) wake();
  }
  void wake();
};

// The same without a Doorbell: sleeps until wake(word), unless `word` is not `value` any more. May
// return for no reason.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value);
// Changes `word`, and wakes all threads that sleep on it.
void wake(std::atomic<std::uint32_t>& word);

class DoorbellWaiter {
 public:
  explicit DoorbellWaiter(Doorbell& bell);
  ~DoorbellWaiter() { bell_.listeners.fetch_sub(1, std::memory_order_relaxed); }
  DoorbellWaiter(const DoorbellWaiter&) = delete;
  DoorbellWaiter& operator=(const DoorbellWaiter&) = delete;

  // False: it has not rung for so long. True may mean nothing.
  bool sleep(std::chrono::microseconds longest);

 private:
  Doorbell& bell_;
  std::uint32_t heard_;
};

}  // namespace ringcomm::shm
