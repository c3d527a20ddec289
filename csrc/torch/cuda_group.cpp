// The backend's group on a CUDA device, and the works of what is enqueued there: between torch's
// streams and allocator and the core.
#include <ATen/core/ivalue.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/process.h"
#include "gpu/nccl/communicator.h"
#include "gpu/nccl/enqueued.h"
#include "gpu/nccl/watchdog.h"
#include "gpu/streams/device_collectives.h"
#include "torch/device.h"
#include "torch/observer.h"
#include "torch/operation.h"
#include "torch/python.h"

namespace ringcomm {
namespace {

using c10::cuda::CUDAStream;
using std::chrono::milliseconds;

constexpr std::chrono::microseconds kLookAtWork{50};

bool blocking_wait() {
  static const bool blocking = is_switched_on("RINGCOMM_BLOCKING_WAIT");
  return blocking;
}

std::vector<at::Tensor> all_of(const Operation& operation) {
  std::vector<at::Tensor> all;
  for (const auto* tensors : {&operation.inputs, &operation.outputs, &operation.memory}) {
    all.insert(all.end(), tensors->begin(), tensors->end());
  }
  return all;
}

// What torch holds of an operation enqueued on the device.
//
// wait() makes the current stream wait, and the host only if it is given a timeout or
// RINGCOMM_BLOCKING_WAIT=1 asks for it. Errors come from the group's watchdog, which notices them
// some time after they happen.
//
// The work holds the tensors as gpu/nccl/enqueued.h says.
class CudaWork : public c10d::Work {
 public:
  // Before anything is enqueued, so that the profiler sees it being enqueued. `user` is the stream
  // that the operation begins behind.
  CudaWork(int rank, const Operation& operation, CUDAStream user,
           std::shared_ptr<const nccl::Failure> failure,
           std::shared_ptr<nccl::TensorStash<at::Tensor>> stash);

  // Everything is enqueued on that stream.
  void enqueued(const nccl::Enqueued& enqueued, CUDAStream stream);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(milliseconds timeout) override;
  void synchronize() override;
  // From torch 2.10 on this overrides Work::blockCurrentStream.
  virtual void blockCurrentStream() { synchronize(); }
  void abort() override;
  // Milliseconds on the device, of a group with enableCollectivesTiming(). It waits for nothing.
  float getDuration() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // From torch 2.13 on this overrides Work::getTimeout.
  virtual milliseconds getTimeout() const { return timeout_; }
  // From torch 2.15 on this overrides Work::getCompletionKey.
  virtual std::uint64_t getCompletionKey() const { return report_.completion_key(); }

 private:
  bool happened() const;
  void wait_on_host(std::optional<milliseconds> timeout);

  const std::uint64_t sequence_;
  const std::vector<at::Tensor> outputs_;
  const milliseconds timeout_;
  const c10::DeviceIndex device_;
  const std::shared_ptr<const nccl::Failure> failure_;
  std::shared_ptr<const nccl::EventHandle> end_, start_;
  nccl::StashedTensors<at::Tensor> memory_;
  const Report report_;
  mutable std::once_flag reported_;
  mutable std::exception_ptr error_;  // once it is reported
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

CudaWork::CudaWork(int rank, const Operation& operation, CUDAStream user,
                   std::shared_ptr<const nccl::Failure> failure,
                   std::shared_ptr<nccl::TensorStash<at::Tensor>> stash)
    : Work(rank, operation.type, operation.title, operation.inputs),
      sequence_(operation.sequence),
      outputs_(operation.outputs),
      timeout_(operation.timeout),
      device_(user.device_index()),
      failure_(std::move(failure)),
      memory_(all_of(operation), user.stream(), std::move(stash)),
      report_(operation.report) {}

// The future is complete at once, in the sense of streams: its callbacks run on streams that wait
// for ours.
void CudaWork::enqueued(const nccl::Enqueued& enqueued, CUDAStream stream) {
  end_ = enqueued.end;
  start_ = enqueued.start;
  memory_.until(end_);
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{stream.device()});
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    future_->markCompleted(c10::IValue(outputs_));
  }
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

// What is captured happens at every replay, and none of them concerns this work.
bool CudaWork::happened() const { return end_->is_captured() || end_->happened(); }

bool CudaWork::isCompleted() { return exception() || happened(); }

bool CudaWork::isSuccess() const { return !exception() && happened(); }

std::exception_ptr CudaWork::exception() const {
  if (end_->is_confirmed()) return nullptr;
  const std::exception_ptr error = failure_->get();
  if (!error) return nullptr;
  std::call_once(reported_, [&] { error_ = report_.failed(error); });
  return error_;
}

void CudaWork::synchronize() {
  memory_.make_wait(c10::cuda::getCurrentCUDAStream(device_).stream());
}

bool CudaWork::wait(milliseconds timeout) {
  try {
    synchronize();
    if (timeout > milliseconds(0)) {
      wait_on_host(bounded(timeout));
    } else if (blocking_wait()) {
      wait_on_host(std::nullopt);
    }
  } catch (const Error&) {
    rethrow_for_torch(std::current_exception());
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

// Without a timeout, the operation's own applies, which the communicator watches over.
void CudaWork::wait_on_host(std::optional<milliseconds> timeout) {
  const auto is_over = [this] { return isCompleted(); };
  if (poll_for(bounded(timeout.value_or(milliseconds::max())), Poll(kLookAtWork), is_over)) return;
  throw Error(ErrorKind::kTimeout, wait_timed_out("rank " + std::to_string(rank_) + " in " +
                                                      c10d::opTypeToString(retrieveOpType()) +
                                                      " #" + std::to_string(sequence_),
                                                  *timeout, timeout_));
}

void CudaWork::abort() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "ring: a single operation cannot be aborted; abort its process group");
}

float CudaWork::getDuration() const {
  TORCH_CHECK(start_,
              "ring: the duration of an operation on a device is measured only in groups whose "
              "backend has had enableCollectivesTiming() called before, and neither in a CUDA "
              "graph nor for operations that are coalesced");
  std::optional<float> milliseconds;
  try {
    if (!exception()) milliseconds = end_->milliseconds_since(*start_);
  } catch (const Error&) {
    rethrow_for_torch(std::current_exception());
  }
  TORCH_CHECK(milliseconds,
              "ring: the duration of an operation that has not completed, or has failed");
  return *milliseconds;
}

constexpr std::chrono::seconds kPatienceForLock{1};

void empty_cache() { c10::cuda::CUDACachingAllocator::emptyCache(); }

class CudaGroup : public DeviceGroup {
 public:
  // `device` is the current one.
  CudaGroup(Group& group, at::Device device, const streams::DeviceOptions& options)
      : device_(device),
        is_asked_to_fuse_(options.executor == streams::DeviceExecutor::kFused),
        ends_process_(options.async_errors == streams::AsyncErrors::kExit),
        communicator_(group, device.index(), options,
                      {.reclaim = empty_cache, .on_lost_results = [this](const Error& error) {
                         if (ends_process_) end_process(error);
                       }}) {
    log_once(options);
  }

  // Members may use the device as they go. Where it cannot be made current any more, it has failed,
  // and there is nothing to end on it.
  ~CudaGroup() override {
    at_the_end([this] { abort("the process group is closed"); });
  }

  at::Device device() const override { return device_; }

  void connect(milliseconds timeout) override {
    const c10::cuda::CUDAGuard guard(device_);
    communicator_.connect(timeout);
    warn_if_not_fused();
  }

  WorkPtr enqueue(const Operation& operation, const Operation::Body& body) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(operation);
    finish(*work, operation, enqueue_behind(current(), body, timing_of(operation)));
    warn_if_not_fused();
    return work;
  }

  WorkPtr join(const Operation& operation) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(operation);
    finish(*work, operation, communicator_.end_of_all());
    return work;
  }

  WorkPtr exchange(const Operation& operation, const std::vector<PeerMessage>& messages,
                   const std::vector<Writable>& data) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(operation);
    const auto commit = [&](std::size_t i, cudaStream_t stream) {
      if (messages[i].is_send) return;
      const c10::cuda::CUDAStreamGuard on_stream(external(stream));
      data[i].commit();
    };
    finish(*work, operation,
           communicator_.exchange(current().stream(), messages, operation.timeout, commit,
                                  timing_of(operation)));
    return work;
  }

  // Uses only what the watchdog knows, because a question to the device may take as long as it
  // hangs. Hooks are called without the lock: they may use the group.
  void note_completed() override {
    while (std::optional<UnderWay> done = take_completed()) call_hooks(*done);
    if (!communicator_.failure()->get()) return;
    std::lock_guard lock(under_way_mutex_);
    for (UnderWay& lost : under_way_) lost.until_noted.reset();
  }

  void shut_down(milliseconds timeout) override {
    const c10::cuda::CUDAGuard guard(device_);
    const std::string left = communicator_.shut_down(timeout);
    if (!left.empty()) TORCH_WARN("ring: rank ", communicator_.rank(), ": ", left);
  }
  void abort(const std::string& reason) override {
    const c10::cuda::CUDAGuard guard(device_);
    communicator_.abort(reason);
  }

 private:
  struct UnderWay {
    Report report;
    c10d::OpType type;
    std::uint64_t sequence;
    nccl::Enqueued enqueued;
    std::shared_ptr<const void> extension;    // of the group's timeout
    std::shared_ptr<const char> until_noted;  // or until it has failed
    std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  };

  // In a process: what its groups' collectives go by, and how to ask for something else.
  static void log_once(const streams::DeviceOptions& options) {
    static std::once_flag logged;
    std::call_once(logged, [&] {
      LOG(INFO) << "ring: collectives on GPUs: "
                << streams::describe(options.executor, options.auto_is_fused);
    });
  }

  // Once, if fused kernels were tried and cannot be used: a warning if the user asked for them by
  // name, else a line in the log.
  void warn_if_not_fused() {
    if (communicator_.why_not_fused().empty() || warned_.exchange(true)) return;
    const auto text =
        c10::str("collectives on ", device_, " go as messages: ", communicator_.why_not_fused());
    if (is_asked_to_fuse_) {
      TORCH_WARN("ring: RINGCOMM_EXECUTOR=fused, but ", text);
    } else {
      LOG(INFO) << "ring: " << text;
    }
  }

  // On the watchdog's thread. The flight record comes first: it cannot be written later.
  [[noreturn]] void end_process(const Error& error) {
    at_the_end([&] {
      // A thread may hold it for good, in a hook that waits for Python.
      std::unique_lock lock(under_way_mutex_, std::defer_lock);
      if (!poll_for(kPatienceForLock, Poll(kPollEvery), [&] { return lock.try_lock(); })) return;
      for (const UnderWay& operation : under_way_) {
        operation.report.record_failure(std::make_exception_ptr(error));
      }
    });
    nccl::end_process(error);
  }

  CUDAStream current() const { return c10::cuda::getCurrentCUDAStream(device_.index()); }
  CUDAStream external(cudaStream_t stream) const {
    return c10::cuda::getStreamFromExternal(stream, device_.index());
  }

  c10::intrusive_ptr<CudaWork> make_work(const Operation& operation) {
    stash_->sweep();
    return c10::make_intrusive<CudaWork>(communicator_.rank(), operation, current(),
                                         communicator_.failure(), stash_);
  }

  // What the body makes torch do beside the collectives goes to the communicator's stream, too.
  nccl::Enqueued enqueue_behind(CUDAStream user, const Operation::Body& body, nccl::Timing timing) {
    const c10::cuda::CUDAStreamGuard on_stream(external(communicator_.stream()));
    return communicator_.enqueue_behind(user.stream(), body, timing);
  }

  void finish(CudaWork& work, const Operation& operation, const nccl::Enqueued& enqueued) {
    work.enqueued(enqueued, external(enqueued.stream));
    note_completed();
    if (enqueued.end->is_captured()) return;
    std::lock_guard lock(under_way_mutex_);
    under_way_.push_back({.report = operation.report,
                          .type = operation.type,
                          .sequence = operation.sequence,
                          .enqueued = enqueued,
                          .extension = operation.claim_extension(),
                          .until_noted = operation.report.under_way()});
  }

  static nccl::Timing timing_of(const Operation& operation) {
    return operation.report.is_timed() ? nccl::Timing::kOn : nccl::Timing::kOff;
  }

  std::optional<UnderWay> take_completed() {
    std::lock_guard lock(under_way_mutex_);
    if (under_way_.empty() || !under_way_.front().enqueued.end->is_confirmed()) return std::nullopt;
    UnderWay done = std::move(under_way_.front());
    under_way_.pop_front();
    return done;
  }

  static void call_hooks(const UnderWay& done) {
    const auto& start = done.enqueued.start;
    std::optional<float> milliseconds;
    if (start) {
      error_of([&] { milliseconds = done.enqueued.end->milliseconds_since(*start); });
    }
    done.report.succeeded();
    done.report.call_completion_hooks(milliseconds);
    if (!milliseconds || !done.report.wants_work_info()) return;
    const auto took = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<float, std::milli>(*milliseconds));
    error_of([&] {
      done.report.call_work_info_hook(std::make_shared<c10d::WorkInfo>(
          done.type, done.sequence, done.began, std::chrono::steady_clock::now(), took));
    });
  }

  const at::Device device_;
  const bool is_asked_to_fuse_;
  const bool ends_process_;
  std::atomic<bool> warned_{false};
  using TensorStash = nccl::TensorStash<at::Tensor>;
  const std::shared_ptr<TensorStash> stash_ = std::make_shared<TensorStash>();
  std::mutex under_way_mutex_;
  // In the order they were enqueued, and not known to be complete.
  std::deque<UnderWay> under_way_;
  nccl::Communicator communicator_;  // its streams end before the stash
};

}  // namespace

const char* missing_for_cuda() { return ""; }

std::unique_ptr<DeviceGroup> make_cuda_group(Group& group, at::Device device,
                                             const streams::DeviceOptions& options) {
  try {
    int num_devices = 0;
    RINGCOMM_CHECK(cudaGetDeviceCount(&num_devices));
    const c10::cuda::CUDAGuard guard(device);
    return std::make_unique<CudaGroup>(group, device, options);
  } catch (const Error& error) {
    throw Error(error.kind(), "making the group's part on " + device.str() + ": " + error.what());
  }
}

}  // namespace ringcomm
