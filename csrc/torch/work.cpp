#include "torch/work.h"

#include <algorithm>
#include <utility>

#include "core/deadline.h"
#include "torch/python.h"

namespace ringcomm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

c10d::WorkResult outcome_of(const std::exception_ptr& error) {
  if (!error) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    const bool is_late = cause.kind() == ErrorKind::kTimeout;
    return is_late ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::COMM_ERROR;
  }
}

c10::IValue as_int(c10d::WorkResult outcome) {
  return c10::IValue(static_cast<std::int64_t>(outcome));
}

}  // namespace

RingWork::RingWork(int rank, Operation operation)
    : Work(rank, operation.type, operation.title, std::move(operation.inputs)),
      sequence_(operation.sequence),
      outputs_(std::move(operation.outputs)),
      has_result_(operation.has_result),
      timeout_(operation.timeout),
      report_(std::move(operation.report)),
      under_way_(report_.under_way()),
      extension_(operation.claim_extension()) {
  if (report_.is_timed()) stopwatch_.emplace();
}

// A thread that waits for this work must wake up, whatever fails on the way.
void RingWork::complete(std::exception_ptr error, int source) noexcept {
  outcome_ = outcome_of(error);
  if (error) {
    error_of([&] { error = report_.failed(error); });
  } else {
    error_of([&] { report_.succeeded(source); });
  }
  const auto ended = steady_clock::now();
  if (stopwatch_ && !error) {
    stopwatch_->milliseconds =
        std::chrono::duration<float, std::milli>(ended - stopwatch_->began).count();
  }
  error_of([&] { finish(error); });
  if (!error) call_hooks(ended);
  under_way_.reset();
  extension_.reset();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<std::function<void(std::exception_ptr)>> next;
  {
    std::lock_guard lock(mutex_);
    notified_ = true;
    future = future_;
    next.swap(next_);
  }
  cv_.notify_all();
  if (future && !future->completed()) {
    std::exception_ptr failure = error;
    if (!failure) {
      failure = error_of([&] { future->markCompleted(c10::IValue(outputs_)); });
    }
    if (failure) {
      error_of([&] { future->setErrorIfNeeded(failure); });
    }
  }
  for (const auto& call : next) {
    error_of([&] { call(error); });
  }
}

void RingWork::call_hooks(steady_clock::time_point ended) noexcept {
  report_.call_completion_hooks(stopwatch_ ? stopwatch_->milliseconds : std::nullopt);
  if (stopwatch_ && report_.wants_work_info()) {
    error_of([&] {
      report_.call_work_info_hook(std::make_shared<c10d::WorkInfo>(
          opType_, sequence_, stopwatch_->began, ended, ended - stopwatch_->began));
    });
  }
}

void RingWork::then(std::function<void(std::exception_ptr)> next) {
  {
    std::lock_guard lock(mutex_);
    if (!notified_) {
      next_.push_back(std::move(next));
      return;
    }
  }
  next(exception());
}

bool RingWork::wait(milliseconds timeout) {
  const CallGuard inside;
  const bool is_bounded = timeout > milliseconds(0);
  const auto end = steady_clock::now() + (is_bounded ? bounded(timeout) : milliseconds(0));
  while (!is_notified()) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
    if (is_bounded && left <= milliseconds(0)) {
      C10_THROW_ERROR(
          DistBackendError,
          wait_timed_out(c10::str("ring: rank ", rank_, " in ",
                                  c10d::opTypeToString(retrieveOpType()), " #", sequence_),
                         timeout, timeout_));
    }
    help(is_bounded ? left : milliseconds::max());
    check_interrupt();
    const auto look = steady_clock::now() + kLookEvery;
    std::unique_lock lock(mutex_);
    cv_.wait_until(lock, is_bounded ? std::min(look, end) : look, [&] { return notified_; });
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

bool RingWork::is_notified() {
  const std::lock_guard lock(mutex_);
  return notified_;
}

void RingWork::abort() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "ring: a single operation cannot be aborted; abort its process group");
}

float RingWork::getDuration() const {
  TORCH_CHECK(stopwatch_,
              "ring: the duration of an operation is measured only in groups whose "
              "backend has had enableCollectivesTiming() called before");
  TORCH_CHECK(const_cast<RingWork*>(this)->isCompleted() && stopwatch_->milliseconds,
              "ring: the duration of an operation that has not completed, or has failed");
  return *stopwatch_->milliseconds;
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFuture() {
  std::lock_guard lock(mutex_);
  if (!future_) {
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (completed_ && exception_) {
      future_->setError(exception_);
    } else if (completed_) {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  then([future, self = c10::intrusive_ptr<RingWork>::reclaim_copy(this)](std::exception_ptr) {
    future->markCompleted(as_int(self->outcome_));
  });
  return future;
}

std::vector<at::Tensor> RingWork::result() {
  TORCH_CHECK(isCompleted(), "ring: result() of an operation that is not complete; call wait()");
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> DoneWork::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  future->markCompleted(as_int(c10d::WorkResult::SUCCESS));
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> DoneWork::getFuture() {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(result()));
  return future;
}

// A collective that has begun cannot be left, so a caller with little patience leaves it to a
// worker.
void CollectiveWork::help(milliseconds patience) {
  if (patience != milliseconds::max()) return;
  while (!isCompleted() && queue_->help()) {
  }
}

void CoalescedWork::await_parts() {
  if (parts_.empty()) complete(nullptr);
  auto self = c10::intrusive_ptr<CoalescedWork>::reclaim_copy(this);
  for (const auto& part : parts_) {
    part->then([self](std::exception_ptr error) {
      bool last;
      {
        std::lock_guard lock(self->count_mutex_);
        if (error && !self->first_error_) self->first_error_ = error;
        last = --self->remaining_ == 0;
      }
      if (last) self->complete(self->first_error_);
    });
  }
}

void CoalescedWork::help(milliseconds patience) {
  for (const auto& part : parts_) {
    if (part->isCompleted()) continue;
    try {
      part->wait(patience == milliseconds::max() ? kNoTimeout : patience);
    } catch (...) {
      return;  // it is ours already, or we are out of patience
    }
  }
}

}  // namespace ringcomm
