// Hooks of torch's that are called when an operation has succeeded, and when a group is about to
// end in failure. From version 2.15 on torch attaches its own flight recorder by them. And the time
// that torch adds to a group's timeout for a while.
#pragma once

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "core/status.h"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define RINGCOMM_WITH_COMPLETION_HOOKS 1
#endif

namespace ringcomm {

// Hooks of one kind, by torch's numbers for them. They are called, and destroyed, without the lock:
// they may want Python's. So one may still be running when it has been removed. What a hook
// throws becomes a warning, because the operation has ended by then.
template <typename... Args>
class HookTable {
 public:
  using Hook = std::function<void(Args...)>;

  void add(std::int64_t id, Hook hook) {
    change([&](Map& hooks) { hooks[id] = std::make_shared<const Hook>(std::move(hook)); });
  }
  void remove(std::int64_t id) {
    change([&](Map& hooks) { hooks.erase(id); });
  }
  // Costs next to nothing.
  bool is_empty() const { return is_empty_.load(std::memory_order_relaxed); }
  void call(Args... args) const noexcept {
    const std::shared_ptr<const Map> hooks = current();
    for (const auto& [id, hook] : *hooks) {
      const std::exception_ptr error = error_of([&] { (*hook)(args...); });
      if (error) {
        error_of([&] { TORCH_WARN("ring: a hook failed: ", what_of(error)); });
      }
    }
  }

 private:
  using Map = std::map<std::int64_t, std::shared_ptr<const Hook>>;

  std::shared_ptr<const Map> current() const {
    std::lock_guard lock(mutex_);
    return hooks_;
  }
  template <typename Change>
  void change(Change&& change) {
    std::shared_ptr<const Map> before;  // outlives the lock
    std::lock_guard lock(mutex_);
    auto hooks = std::make_shared<Map>(*hooks_);
    change(*hooks);
    is_empty_ = hooks->empty();
    before = std::exchange(hooks_, std::move(hooks));
  }

  mutable std::mutex mutex_;
  std::atomic<bool> is_empty_ = true;
  std::shared_ptr<const Map> hooks_ = std::make_shared<Map>();
};

// Time that is added to a group's timeout for a while: Backend::addEphemeralTimeout.
//
// It counts for every work that is created until the first of them is complete. That first work
// claims it, and lets go of it when it is complete.
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

// A backend's. Its works hold them, and may outlive it.
struct Hooks {
  HookTable<> abort;
#ifdef RINGCOMM_WITH_COMPLETION_HOOKS
  HookTable<const c10d::CompletionHookArgs&> completion;
#endif
  // Called for operations that have succeeded; there is at most one.
  HookTable<const std::shared_ptr<c10d::WorkInfo>&> work_info;
  std::atomic<bool> times_calls = false;  // that begin from now on
  // Works that are not complete hold it, too.
  std::shared_ptr<const char> under_way = std::make_shared<const char>();
  const std::shared_ptr<TimeoutExtension> extension = std::make_shared<TimeoutExtension>();
};

// The number by which completion hooks know a work. No two works have the same one.
inline std::uint64_t next_completion_key() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

inline void call_completion_hooks([[maybe_unused]] const Hooks& hooks,
                                  [[maybe_unused]] std::uint64_t key,
                                  [[maybe_unused]] std::optional<float> milliseconds) noexcept {
#ifdef RINGCOMM_WITH_COMPLETION_HOOKS
  if (!hooks.completion.is_empty()) hooks.completion.call({key, milliseconds});
#endif
}

}  // namespace ringcomm
