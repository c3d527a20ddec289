// Reports how an operation goes, to the flight record and to torch's hooks.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>

#include "core/flight_recorder.h"
#include "core/status.h"
#include "core/thread.h"
#include "torch/errors.h"
#include "torch/hooks.h"

namespace ringcomm {

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

}  // namespace ringcomm
