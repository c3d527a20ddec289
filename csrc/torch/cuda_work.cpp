#include "torch/cuda_work.h"

#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "torch/errors.h"

namespace ringcomm {
namespace {

using std::chrono::milliseconds;

bool blocking_wait() {
  static const bool blocking = [] {
    const char* value = std::getenv("RINGCOMM_BLOCKING_WAIT");
    return value != nullptr && std::string(value) == "1";
  }();
  return blocking;
}

}  // namespace

CudaWork::CudaWork(std::shared_ptr<nccl::Communicator> communicator, const Launch& launch,
                   std::uint64_t sequence)
    : Work(communicator->rank(), launch.type, launch.title,
           std::optional<std::vector<at::Tensor>>(launch.inputs)),
      communicator_(std::move(communicator)),
      sequence_(sequence),
      outputs_(launch.outputs),
      timeout_(launch.timeout) {}

// The future is complete at once, in the sense of streams: its callbacks run on streams that wait
// for ours.
void CudaWork::enqueued(const std::vector<c10::cuda::CUDAStream>& streams) {
  for (const c10::cuda::CUDAStream& stream : streams) {
    RINGCOMM_CHECK(cudaEventRecord(ends_.emplace_back().get(), stream.stream()));
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()),
      std::vector<c10::Device>{c10::Device(
          c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(communicator_->device()))});
  {
    c10::cuda::CUDAMultiStreamGuard guard(streams);
    future_->markCompleted(c10::IValue(outputs_));
  }
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

bool CudaWork::happened() const {
  for (const nccl::Event& end : ends_) {
    if (!end.happened()) return false;
  }
  return true;
}

bool CudaWork::isCompleted() { return communicator_->failure() || happened(); }

bool CudaWork::isSuccess() const { return !communicator_->failure() && happened(); }

std::exception_ptr CudaWork::exception() const { return for_torch(communicator_->failure()); }

void CudaWork::synchronize() {
  const c10::cuda::CUDAStream current =
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(communicator_->device()));
  for (const nccl::Event& end : ends_) {
    RINGCOMM_CHECK(cudaStreamWaitEvent(current.stream(), end.get(), 0));
  }
}

bool CudaWork::wait(milliseconds timeout) {
  try {
    synchronize();
    if (timeout > milliseconds(0)) {
      wait_on_host(timeout);
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
  const auto begin = std::chrono::steady_clock::now();
  while (!isCompleted()) {
    if (timeout && std::chrono::steady_clock::now() - begin > *timeout) {
      throw Error(ErrorKind::kTimeout, "rank " + std::to_string(rank_) + " in " +
                                           c10d::opTypeToString(retrieveOpType()) + " #" +
                                           std::to_string(sequence_) + ": wait() Timed out after " +
                                           std::to_string(timeout->count()) +
                                           " ms; the operation goes on until its own timeout of " +
                                           std::to_string(timeout_.count()) + " ms");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void CudaWork::abort() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "ring: a single operation cannot be aborted; abort its process group");
}

}  // namespace ringcomm
