// The backend's group on a CUDA device: between torch's streams and allocator and the core.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/poll.h"
#include "gpu/nccl/await.h"
#include "gpu/nccl/communicator.h"
#include "gpu/streams/device_collectives.h"
#include "torch/cuda_work.h"
#include "torch/device.h"
#include "torch/errors.h"

namespace ringcomm {
namespace {

using c10::cuda::CUDAStream;

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

  void connect(std::chrono::milliseconds timeout) override {
    const c10::cuda::CUDAGuard guard(device_);
    communicator_.connect(timeout);
    warn_if_not_fused();
  }

  WorkPtr enqueue(const Operation& operation, const Operation::Body& body) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(operation);
    finish(*work, operation, enqueue_behind(current(), body));
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
           communicator_.exchange(current().stream(), messages, operation.timeout, commit));
    return work;
  }

  // Uses only what the watchdog knows, because a question to the device may take as long as it
  // hangs.
  void note_completed() override {
    std::lock_guard lock(under_way_mutex_);
    while (!under_way_.empty() && under_way_.front().end->is_confirmed()) {
      under_way_.front().report.succeeded();
      under_way_.front().report.call_completion_hooks();
      under_way_.pop_front();
    }
  }

  void shut_down(std::chrono::milliseconds timeout) override {
    const c10::cuda::CUDAGuard guard(device_);
    const std::string left = communicator_.shut_down(timeout);
    if (!left.empty()) TORCH_WARN("ring: rank ", communicator_.rank(), ": ", left);
  }
  void abort(const std::string& reason) override {
    const c10::cuda::CUDAGuard guard(device_);
    communicator_.abort(reason);
  }

 private:
  // In a process: what its groups' collectives go by, and how to ask for something else.
  static void log_once(const streams::DeviceOptions& options) {
    static std::once_flag logged;
    std::call_once(logged, [&] {
      LOG(INFO) << "ring: collectives on GPUs: "
                << streams::describe(options.executor, options.auto_is_fused);
    });
  }

  // Once, where the ranks have found out that they cannot do as they were asked.
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
  nccl::Enqueued enqueue_behind(CUDAStream user, const Operation::Body& body) {
    const c10::cuda::CUDAStreamGuard on_stream(external(communicator_.stream()));
    return communicator_.enqueue_behind(user.stream(), body);
  }

  void finish(CudaWork& work, const Operation& operation, const nccl::Enqueued& enqueued) {
    work.enqueued(enqueued.end, external(enqueued.stream));
    note_completed();
    if (enqueued.end->is_captured()) return;
    std::lock_guard lock(under_way_mutex_);
    under_way_.push_back({operation.report, enqueued.end, operation.report.claim_extension()});
  }

  const at::Device device_;
  const bool is_asked_to_fuse_;
  const bool ends_process_;
  std::atomic<bool> warned_{false};
  using TensorStash = nccl::TensorStash<at::Tensor>;
  const std::shared_ptr<TensorStash> stash_ = std::make_shared<TensorStash>();
  std::mutex under_way_mutex_;
  struct UnderWay {
    Report report;
    std::shared_ptr<const nccl::EventHandle> end;
    std::shared_ptr<const void> extension;  // of the group's timeout
  };
  // In the order they were enqueued, and not known to be complete.
  std::deque<UnderWay> under_way_;
  nccl::Communicator communicator_;  // its streams end before the shelf
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
