// The error that a group on a device has failed with. Works refer to it, and may outlive the group.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>

#include "core/status.h"

namespace ringcomm::nccl {

class Failure {
 public:
  // False if something has failed before: the first cause stays.
  bool set(const Error& error) {
    std::lock_guard lock(mutex_);
    if (error_) return false;
    error_ = std::make_exception_ptr(error);
    failed_.store(true, std::memory_order_release);
    return true;
  }

  // Null as long as all is well.
  std::exception_ptr get() const {
    if (!failed_.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard lock(mutex_);
    return error_;
  }

  void check() const {
    if (const std::exception_ptr error = get()) std::rethrow_exception(error);
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

// Prints the reason and ends the process at once: no destructor may wait for the device, and the
// user's program must not go on.
[[noreturn]] inline void end_process(const Error& error) {
  const std::string text =
      "ring: " + std::string(error.what()) +
      "\nring: the process ends, because the results of what was under way on its device are lost, "
      "and it would compute on with what is in their place. RINGCOMM_ASYNC_ERRORS=raise lets it go "
      "on, and later calls raise the error.\n";
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) break;
    at += static_cast<std::size_t>(written);
  }
  std::_Exit(EXIT_FAILURE);
}

}  // namespace ringcomm::nccl
