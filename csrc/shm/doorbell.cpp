#include "shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace ringcomm::shm {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// Not the private kind: the word is in memory that processes share.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  futex(word, FUTEX_WAIT, value, nullptr);
}

void wake(std::atomic<std::uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
  futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wake() { shm::wake(rings); }

DoorbellWaiter::DoorbellWaiter(Doorbell& bell) : bell_(bell) {
  bell_.listeners.fetch_add(1);
  heard_ = bell_.rings.load();
}

bool DoorbellWaiter::sleep(std::chrono::microseconds longest) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(longest);
  const timespec timeout{.tv_sec = seconds.count(),
                         .tv_nsec = std::chrono::nanoseconds(longest - seconds).count()};
  const bool has_rung = futex(bell_.rings, FUTEX_WAIT, heard_, &timeout) == 0 || errno != ETIMEDOUT;
  heard_ = bell_.rings.load(std::memory_order_acquire);
  return has_rung;
}

}  // namespace ringcomm::shm
