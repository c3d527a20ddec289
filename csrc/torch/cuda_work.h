// What torch holds of operations enqueued on a CUDA device.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "gpu/nccl/event_pool.h"
#include "gpu/nccl/failure.h"
#include "gpu/nccl/tensor_stash.h"
#include "torch/operation.h"

namespace ringcomm {

// wait() makes the current stream wait, and the host only if it is given a timeout or
// RINGCOMM_BLOCKING_WAIT=1 asks for it. Errors come from the group's watchdog, which notices them
// some time after they happen.
//
// The work holds the tensors as gpu/nccl/tensor_stash.h says.
class CudaWork : public c10d::Work {
 public:
  // Before anything is enqueued, so that the profiler sees it being enqueued. `user` is the stream
  // that the operation begins behind.
  CudaWork(int rank, const Operation& operation, c10::cuda::CUDAStream user,
           std::shared_ptr<const nccl::Failure> failure,
           std::shared_ptr<nccl::TensorStash<at::Tensor>> stash);

  // Everything is enqueued, and ends here.
  void enqueued(std::shared_ptr<const nccl::EventHandle> end, c10::cuda::CUDAStream stream);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  // From torch 2.10 on this overrides Work::blockCurrentStream.
  virtual void blockCurrentStream() { synchronize(); }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // From torch 2.13 on this overrides Work::getTimeout.
  virtual std::chrono::milliseconds getTimeout() const { return timeout_; }
  // From torch 2.15 on this overrides Work::getCompletionKey.
  virtual std::uint64_t getCompletionKey() const { return report_.completion_key(); }

 private:
  bool happened() const;
  void wait_on_host(std::optional<std::chrono::milliseconds> timeout);

  const std::uint64_t sequence_;
  const std::vector<at::Tensor> outputs_;
  const std::chrono::milliseconds timeout_;
  const c10::DeviceIndex device_;
  const std::shared_ptr<const nccl::Failure> failure_;
  std::shared_ptr<const nccl::EventHandle> end_;
  nccl::StashedTensors<at::Tensor> memory_;
  const Report report_;
  mutable std::once_flag reported_;
  mutable std::exception_ptr error_;  // once it is reported
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace ringcomm
