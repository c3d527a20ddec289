#include "torch/cuda_work.h"

#include <c10/cuda/CUDAGuard.h>

#include <string>
#include <utility>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/process.h"
#include "torch/errors.h"

namespace ringcomm {
namespace {

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

}  // namespace

CudaWork::CudaWork(int rank, const Operation& operation, c10::cuda::CUDAStream user,
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
void CudaWork::enqueued(std::shared_ptr<const nccl::EventHandle> end,
                        c10::cuda::CUDAStream stream) {
  end_ = std::move(end);
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
  std::call_once(reported_, [&] { error_ = for_torch(report_.failed(error)); });
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

}  // namespace ringcomm
