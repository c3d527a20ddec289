// Time that is added to a group's timeout for a while: Backend::addEphemeralTimeout.
//
// What is added counts for every work that is created until the first of them is complete. So that
// first work claims it, and lets go of it when it is complete.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

namespace ringcomm {

class TimeoutExtension : public std::enable_shared_from_this<TimeoutExtension> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  void add(Milliseconds more) {
    active_ += more.count();
    unclaimed_ += more.count();
  }
  bool is_active() const { return active_.load(std::memory_order_relaxed) != 0; }
  Milliseconds now() const { return Milliseconds(active_.load(std::memory_order_relaxed)); }

  // What was added since the last claim ends with the object that is returned; null: nothing was.
  std::shared_ptr<const void> claim() {
    if (unclaimed_.load(std::memory_order_relaxed) == 0) return nullptr;
    return std::make_shared<const Claim>(shared_from_this());
  }

 private:
  struct Claim {
    explicit Claim(std::shared_ptr<TimeoutExtension> of)
        : extension(std::move(of)), claimed(extension->unclaimed_.exchange(0)) {}
    ~Claim() { extension->active_ -= claimed; }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    const std::shared_ptr<TimeoutExtension> extension;
    const Milliseconds::rep claimed;
  };

  std::atomic<Milliseconds::rep> active_ = 0;
  std::atomic<Milliseconds::rep> unclaimed_ = 0;
};

}  // namespace ringcomm
