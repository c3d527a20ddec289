#include "torch/work.h"

#include <algorithm>
#include <utility>

#include "core/interrupt.h"
#include "torch/errors.h"
#include "torch/leaving.h"

namespace ringcomm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kLookEvery{100};  // whether a signal came

}  // namespace

RingWork::RingWork(int rank, Operation operation)
    : Work(rank, operation.type, operation.title, std::move(operation.inputs)),
      sequence_(operation.sequence),
      outputs_(std::move(operation.outputs)),
      timeout_(operation.timeout),
      report_(std::move(operation.report)) {}

// A thread that waits for this work must wake up, whatever fails on the way.
void RingWork::complete(std::exception_ptr error, int source) noexcept {
  if (error) {
    error_of([&] { error = for_torch(report_.failed(error)); });
  } else {
    error_of([&] { report_.succeeded(source); });
  }
  error_of([&] { finish(error); });
  if (!error) report_.call_completion_hooks();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<std::function<void(std::exception_ptr)>> next;
  {
    std::lock_guard lock(mutex_);
    told_ = true;
    future = future_;
    next.swap(next_);
  }
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

void RingWork::then(std::function<void(std::exception_ptr)> next) {
  {
    std::lock_guard lock(mutex_);
    if (!told_) {
      next_.push_back(std::move(next));
      return;
    }
  }
  next(exception());
}

bool RingWork::wait(milliseconds timeout) {
  const Inside inside;
  const bool bounded = timeout > milliseconds(0);
  const auto end = steady_clock::now() + (bounded ? timeout : milliseconds(0));
  while (!isCompleted()) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
    if (bounded && left <= milliseconds(0)) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str("ring: rank ", rank_, " in ", c10d::opTypeToString(retrieveOpType()),
                               " #", sequence_, ": wait(): Timed out after ", timeout.count(),
                               " ms; the operation goes on until its own timeout of ",
                               timeout_.count(), " ms"));
    }
    help(bounded ? left : milliseconds::max());
    check_interrupt();
    const auto look = steady_clock::now() + kLookEvery;
    std::unique_lock lock(mutex_);
    cv_.wait_until(lock, bounded ? std::min(look, end) : look, [&] { return completed_; });
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

void RingWork::abort() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "ring: a single operation cannot be aborted; abort its process group");
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

c10::intrusive_ptr<c10::ivalue::Future> DoneWork::getFuture() {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(result()));
  return future;
}

std::vector<at::Tensor> RingWork::result() {
  TORCH_CHECK(isCompleted(), "ring: result() of an operation that is not complete; call wait()");
  return outputs_;
}

// A collective that has begun cannot be left, so whoever is short of patience leaves it to a
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
