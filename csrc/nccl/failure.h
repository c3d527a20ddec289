// What a group on a device has failed of. Works refer to it, and may outlive the group.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

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

// Says why, and ends the process at once: no destructor may wait for the device, and no line of the
// user's may run on.
[[noreturn]] void end_process(const Error& error);

}  // namespace ringcomm::nccl
