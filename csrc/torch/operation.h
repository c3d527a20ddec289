// An operation of the backend: what it does, and how it is reported to torch's hooks, to the flight
// record (core/flight_recorder.h) and to profilers.
//
// torch's hooks are called when an operation has succeeded, and when a group is about to end in
// failure. From version 2.15 on torch attaches its own flight recorder by them.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "core/flight_recorder.h"
#include "core/process.h"
#include "core/status.h"
#include "core/thread.h"
#include "torch/python.h"

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

// How an operation goes, for the flight record and torch's hooks.
class Report {
 public:
  Report() = default;
  explicit Report(std::shared_ptr<const Hooks> hooks);

  // Adds the mark of the operation, or of one of the messages that a device begins together.
  void add(const FlightMark& mark) { marks_.push_back(mark); }
  void add(const Report& other) { marks_.append(other.marks_); }

  std::uint64_t completion_key() const { return completion_key_; }

  void started() const;
  // To be called before the work is complete, so that a caller that has waited for the work finds
  // it recorded. `source` is a message's sender.
  void succeeded(int source = FlightRecorder::kAnybody) const;
  // To be called once the work is complete, as hooks may ask it. `milliseconds` is what it took, if
  // that was measured.
  void call_completion_hooks(std::optional<float> milliseconds = std::nullopt) const noexcept {
    if (hooks_) ringcomm::call_completion_hooks(*hooks_, completion_key_, milliseconds);
  }
  // Whether the duration is to be measured.
  bool is_timed() const { return hooks_ && hooks_->times_calls; }
  bool wants_work_info() const { return hooks_ && !hooks_->work_info.is_empty(); }
  void call_work_info_hook(const std::shared_ptr<c10d::WorkInfo>& info) const noexcept {
    hooks_->work_info.call(info);
  }
  // To be held until the hooks of the operation have been called.
  std::shared_ptr<const char> under_way() const { return hooks_ ? hooks_->under_way : nullptr; }
  // To be held until the operation is complete, by the work that is made of it.
  std::shared_ptr<const void> claim_extension() const {
    return hooks_ ? hooks_->extension->claim() : nullptr;
  }
  // The operation was not made: it has no place in the record.
  void withdrawn() const {
    for (const FlightMark& mark : marks_) mark.withdraw();
  }
  // Returns the error with what is to be added to it. To be called before the work is complete.
  std::exception_ptr failed(std::exception_ptr error) const;
  // In the flight record alone: without Python, whose lock another thread may hold for good.
  std::exception_ptr record_failure(std::exception_ptr error) const;

 private:
  c10::SmallVector<FlightMark, 1> marks_;
  std::shared_ptr<const Hooks> hooks_;
  std::uint64_t completion_key_ = 0;
};

// Calls the abort hooks if `error`, one of the core's, ends the group.
void call_abort_hooks(const Hooks& hooks, const std::exception_ptr& error);

// body(), with the core's errors reported, and thrown as torch's.
template <typename Body>
auto with_reported_errors(const Report& report, Body&& body) {
  try {
    return body();
  } catch (const NoThread&) {
    report.withdrawn();
    throw;
  } catch (const Error&) {
    rethrow_for_torch(report.failed(std::current_exception()));
  }
}

struct Operation {
  // Does all of it, with checked arguments, by the collectives of the host or of a device. Throws
  // on failure.
  using Body = std::function<void(Collectives&)>;

  c10d::OpType type;
  const char* title;  // for the profiler
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // What is really read and written: inputs and outputs, or flat copies of them.
  std::vector<at::Tensor> memory;
  std::chrono::milliseconds timeout;
  bool async = true;
  int num_calls = 1;           // of the collectives that the body calls
  std::uint64_t sequence = 0;  // from when it begins
  Report report = {};
};

// Begins to record what this process's groups do, or does nothing if it has begun. `stacks`: with
// the Python frames of each call.
void start_flight_recorder(std::size_t capacity, bool stacks, bool dump_failures);

// Null: nothing is recorded.
FlightRecorder* flight_recorder();

// One rank's part in a group. Its destructor, which no call may be under way with, asks `life` a
// last time.
class GroupFlight {
 public:
  // Without global ranks, they are those of the group.
  GroupFlight(const std::string& name, std::vector<std::uint64_t> global_ranks, int rank,
              int world_size, FlightRecorder::Life life);
  ~GroupFlight() {
    at_the_end([this] { end(); });
  }
  GroupFlight(const GroupFlight&) = delete;
  GroupFlight& operator=(const GroupFlight&) = delete;

  // Nothing in a child that was forked: it may have inherited the record locked.
  void end();

  FlightMark collective(c10d::OpType type, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs, std::chrono::milliseconds timeout);
  // Begun, of one input and one output, which may be the same, or of none.
  FlightMark begun(c10d::OpType type, const at::Tensor* input, const at::Tensor* output,
                   std::chrono::milliseconds timeout);
  FlightMark message(const FlightRecorder::MessageRecord& message, const at::Tensor& tensor,
                     std::chrono::milliseconds timeout, bool starts_at_once = false);
  // A collective that the other ranks count, and that is none here.
  void refused();

  // Null: failures here are not written to files. Else it writes this process's file because
  // another rank has failed, on any thread, for longer than this object lives. `is_broken`: by that
  // failure.
  std::function<void(bool is_broken)> on_dump_request() const;

 private:
  FlightRecorder::Operation operation(std::chrono::milliseconds timeout, bool starts_at_once) const;

  const ForkGuard fork_guard_;
  FlightRecorder* const recorder_;
  std::size_t group_ = 0;
};

// Shows executors' spans to torch's profilers. To be called when the module is loaded.
void show_spans_to_torch();

}  // namespace ringcomm
