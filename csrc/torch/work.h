// The works that torch holds of operations under way.
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/queue.h"
#include "torch/observer.h"
#include "torch/operation.h"

namespace ringcomm {

// One operation, or several that are coalesced. The thread that carries it out calls start() when
// it begins, and complete() once; the future's callbacks run there.
class RingWork : public c10d::Work {
 public:
  RingWork(int rank, Operation operation);

  void start() {
    if (stopwatch_) stopwatch_->began = std::chrono::steady_clock::now();
    report_.started();
  }
  // `source` is a message's sender.
  void complete(std::exception_ptr error, int source = FlightRecorder::kAnybody) noexcept;
  // The outputs hold the result. To be called before complete(), and before the next operation
  // begins, which may write to them.
  void note_result() noexcept {
    if (has_result_) report_.has_result(outputs_);
  }
  // Calls `next` when the work is complete, at once if it already is.
  void then(std::function<void(std::exception_ptr)> next);

  // With kNoTimeout, waits as long as the operation itself is allowed to take. Rethrows its error.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Its value is a c10d::WorkResult as an int. It never fails.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::vector<at::Tensor> result() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // From torch 2.13 on this overrides Work::getTimeout.
  virtual std::chrono::milliseconds getTimeout() const { return timeout_; }
  // From torch 2.15 on this overrides Work::getCompletionKey.
  virtual std::uint64_t getCompletionKey() const { return report_.completion_key(); }
  // Milliseconds from its start to its completion, of a group with enableCollectivesTiming().
  float getDuration() const override;

 protected:
  // Helps the operation along for at most `patience`, or not at all. Returns when the operation is
  // complete or another thread carries it out.
  virtual void help(std::chrono::milliseconds patience) = 0;

 private:
  bool is_notified();
  void call_hooks(std::chrono::steady_clock::time_point ended) noexcept;

  const std::uint64_t sequence_;
  const std::vector<at::Tensor> outputs_;
  const bool has_result_;
  const std::chrono::milliseconds timeout_;
  const Report report_;
  std::shared_ptr<const char> under_way_;
  std::shared_ptr<const void> extension_;                 // of the group's timeout
  c10d::WorkResult outcome_ = c10d::WorkResult::UNKNOWN;  // until it is complete
  struct Stopwatch {
    std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
    std::optional<float> milliseconds = {};
  };
  std::optional<Stopwatch> stopwatch_;  // guarded as completed_ is
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<std::function<void(std::exception_ptr)>> next_;
  // Hooks have been called, and complete() has seen future_ and next_: later ones are called at
  // once.
  bool notified_ = false;
};

// One that was complete before torch was given it.
class DoneWork final : public c10d::Work {
 public:
  DoneWork(int rank, c10d::OpType type, std::uint64_t sequence, at::Tensor output,
           std::chrono::milliseconds timeout, std::uint64_t completion_key)
      : Work(rank, type),
        sequence_(sequence),
        output_(std::move(output)),
        timeout_(timeout),
        completion_key_(completion_key) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::vector<at::Tensor> result() override { return {output_}; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // From torch 2.13 on this overrides Work::getTimeout.
  virtual std::chrono::milliseconds getTimeout() const { return timeout_; }
  // From torch 2.15 on this overrides Work::getCompletionKey.
  virtual std::uint64_t getCompletionKey() const { return completion_key_; }

 private:
  const std::uint64_t sequence_;
  const at::Tensor output_;
  const std::chrono::milliseconds timeout_;
  const std::uint64_t completion_key_;
};

class CollectiveWork : public RingWork {
 public:
  // The queue must outlive the work's completion, the work itself may outlive the queue.
  CollectiveWork(int rank, Operation operation, std::shared_ptr<Queue> queue)
      : RingWork(rank, std::move(operation)), queue_(std::move(queue)) {}

 protected:
  void help(std::chrono::milliseconds patience) override;

 private:
  const std::shared_ptr<Queue> queue_;
};

// Complete when all its parts are; fails with the first error.
class CoalescedWork : public RingWork {
 public:
  CoalescedWork(int rank, Operation operation, std::vector<c10::intrusive_ptr<RingWork>> parts)
      : RingWork(rank, std::move(operation)), parts_(std::move(parts)), remaining_(parts_.size()) {}

  // To be called once the work is held by an intrusive_ptr.
  void await_parts();

 protected:
  void help(std::chrono::milliseconds patience) override;

 private:
  const std::vector<c10::intrusive_ptr<RingWork>> parts_;
  std::mutex count_mutex_;
  std::size_t remaining_;
  std::exception_ptr first_error_;
};

}  // namespace ringcomm
