// How a rank that has waited long sleeps until what it waits for has come.
//
// Who changes what others wait for rings afterwards. As long as nobody listens, that is a look at
// one word, which then lies in the ringer's own cache.
//
//   listener                           ringer
//     Listening listening(bell);         change what is waited for
//     while (!ready())                   bell.ring();
//       listening.sleep(longest);
//
// Invariant: what rings after the listener has begun to listen, or after it has slept last, ends
// its next sleep at once; so a change is either seen by ready() or heard of. But for one gap: the
// ringer's look may overtake its own change on the way to memory, by some nanoseconds, and a fence
// against that would cost every change more than all listeners gain. So nobody sleeps without end.
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

// The same without a Bell: sleeps until wake(word), unless `word` is not `value` any more. May
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
