// What observes the operations of a backend: torch's hooks, torch's profilers and the flight record
// (core/flight_recorder.h). What happens to an operation is said to its Report, once.
//
// torch's hooks are called when an operation has succeeded, and when a group is about to end in
// failure. From version 2.15 on torch attaches its own flight recorder by them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>
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
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

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

class Observer;

// Records the digest of a result that has come, if digests are asked for. No other operation may
// write to the tensors meanwhile.
void record_digest(const FlightMark& mark, std::span<const at::Tensor> result) noexcept;
inline void note_result(const FlightMark& mark, std::span<const at::Tensor> result) noexcept {
  if (mark.takes_digest() && !result.empty()) record_digest(mark, result);
}

// How one operation goes, or several that a device begins together. Without an observer, nothing is
// reported.
class Report {
 public:
  Report() = default;
  explicit Report(std::shared_ptr<const Observer> observer);

  // Adds the mark of the operation, or of one of the messages that a device begins together.
  void add(const FlightMark& mark) {
    if (mark.recorder != nullptr) marks_.push_back(mark);
  }
  void add(const Report& other) { marks_.append(other.marks_); }

  // Null if nothing is reported. To be held until the hooks of the operation have been called.
  std::shared_ptr<const char> under_way() const;
  // Whether the duration is to be measured.
  bool is_timed() const;
  std::uint64_t completion_key() const { return completion_key_; }

  void started() const {
    for (const FlightMark& mark : marks_) mark.start();
  }
  // To be called before succeeded(), and before the next operation begins.
  void has_result(std::span<const at::Tensor> result) const noexcept {
    for (const FlightMark& mark : marks_) note_result(mark, result);
  }
  // To be called before the work is complete, so that a caller that has waited for the work finds
  // it recorded. `source` is a message's sender.
  void succeeded(int source = FlightRecorder::kAnybody) const {
    for (const FlightMark& mark : marks_) mark.complete(source);
  }
  // To be called once the work is complete, as hooks may ask it. `milliseconds` is what it took, if
  // that was measured.
  void call_completion_hooks(std::optional<float> milliseconds = std::nullopt) const noexcept;
  bool wants_work_info() const;
  void call_work_info_hook(const std::shared_ptr<c10d::WorkInfo>& info) const noexcept;
  // Calls the abort hooks if the error ends the group. Returns the error as torch's, with what is
  // to be added to it. To be called before the work is complete.
  std::exception_ptr failed(std::exception_ptr error) const;
  // In the flight record alone: without Python, whose lock another thread may hold for good.
  void record_failure(std::exception_ptr error) const;
  // The operation was not made: it has no place in the record.
  void withdrawn() const {
    for (const FlightMark& mark : marks_) mark.withdraw();
  }

 private:
  c10::SmallVector<FlightMark, 1> marks_;
  std::shared_ptr<const Observer> observer_;
  std::uint64_t completion_key_ = 0;
};

// A backend's. The works of its operations hold it, and may outlive the backend.
class Observer : public std::enable_shared_from_this<Observer> {
 public:
  ~Observer() {
    at_the_end([this] { end_record(); });
  }

  // Begins the flight record of the group's present members, in place of the one before. Without
  // global ranks, they are those of the group.
  void begin_record(const std::string& name, std::vector<std::uint64_t> global_ranks, int rank,
                    int world_size, FlightRecorder::Life life);
  // Asks `life` a last time. No call may be under way. Nothing in a child that was forked: it may
  // have inherited the record locked.
  void end_record();
  // Null: failures here are not written to files. Else it writes this process's file because
  // another rank has failed, on any thread, for longer than this object lives. `is_broken`: by that
  // failure.
  std::function<void(bool is_broken)> on_dump_request() const;

  // The reports of operations that are in the record from now on.
  Report collective(c10d::OpType type, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& outputs,
                    std::chrono::milliseconds timeout) const;
  Report message(const FlightRecorder::MessageRecord& message, const at::Tensor& tensor,
                 std::chrono::milliseconds timeout, bool starts_at_once = false) const;
  // A work that joins operations has one, too. They are in the record themselves.
  Report joint() const { return Report(shared_from_this()); }
  // The mark of a collective that has begun, and ends within the call that makes it: it needs no
  // report. It has one input and one output, which may be the same, or none.
  FlightMark begun(c10d::OpType type, const at::Tensor* input, const at::Tensor* output,
                   std::chrono::milliseconds timeout) const;
  // Report::failed, for operations without a report.
  std::exception_ptr failed(std::span<const FlightMark> marks, std::exception_ptr error) const;
  // A collective, or a message, that the other ranks count, and that is none here.
  void refused(const std::optional<FlightRecorder::MessageRecord>& message = {}) const;
  // The number by which completion hooks know a work. No two works have the same one.
  static std::uint64_t next_completion_key();
  // The group ends.
  void aborted() const { hooks.abort.call(); }

  // Whether a profiler, or something else of torch's, listens to this thread's operations.
  static bool is_profiled() { return at::hasCallbacks(); }
  // Whether operations that begin from now on know how long they took.
  bool times_calls() const { return times_calls_; }
  void time_calls() { times_calls_ = true; }
  // To be held by each work until it is complete and its hooks have been called.
  const std::shared_ptr<const char>& under_way() const { return under_way_; }
  bool has_work_under_way() const { return under_way_.use_count() > 1; }

  struct Hooks {
    HookTable<> abort;
#ifdef RINGCOMM_WITH_COMPLETION_HOOKS
    HookTable<const c10d::CompletionHookArgs&> completion;
#endif
    // Called for operations that have succeeded; there is at most one.
    HookTable<const std::shared_ptr<c10d::WorkInfo>&> work_info;
  };
  Hooks hooks;
  void call_completion_hooks([[maybe_unused]] std::uint64_t key,
                             [[maybe_unused]] std::optional<float> milliseconds) const noexcept {
#ifdef RINGCOMM_WITH_COMPLETION_HOOKS
    if (!hooks.completion.is_empty()) hooks.completion.call({key, milliseconds});
#endif
  }

 private:
  FlightRecorder::Operation operation(std::chrono::milliseconds timeout, bool starts_at_once) const;
  Report report_of(const FlightMark& mark) const;

  const ForkGuard fork_guard_;
  FlightRecorder* recorder_ = nullptr;
  std::size_t group_ = 0;
  std::atomic<bool> times_calls_ = false;
  const std::shared_ptr<const char> under_way_ = std::make_shared<const char>();
};

// body(), with the core's errors reported, and thrown as torch's.
template <typename Body>
auto with_reported_errors(const Report& report, Body&& body) {
  try {
    return body();
  } catch (const NoThread&) {
    report.withdrawn();
    throw;
  } catch (const Error&) {
    std::rethrow_exception(report.failed(std::current_exception()));
  }
}

// Begins to record what this process's groups do, or does nothing if it has begun. `stacks`: with
// the Python frames of each call. `digests`: with the digest of each result on the CPU.
void start_flight_recorder(std::size_t capacity, bool stacks, bool dump_failures, bool digests);
// Writes its file where that is wanted: see dump_at_end. Nothing in a child that was forked.
void end_flight_recorder();

// Null: nothing is recorded.
FlightRecorder* flight_recorder();

// Shows executors' spans to torch's profilers. To be called when the module is loaded.
void show_spans_to_torch();

}  // namespace ringcomm
