// What torch holds of operations enqueued on a CUDA device.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "nccl/communicator.h"
#include "nccl/handles.h"
#include "torch/launch.h"

namespace ringcomm {

// wait() makes the current stream wait, and the host only where it is given a timeout or
// RINGCOMM_BLOCKING_WAIT=1 asks for it. Errors come from the communicator, which notices them some
// time after they happen.
class CudaWork : public c10d::Work {
 public:
  // Before anything is enqueued, so that the profiler sees the launch.
  CudaWork(std::shared_ptr<nccl::Communicator> communicator, const Launch& launch,
           std::uint64_t sequence);

  // Everything is enqueued, on these streams.
  void enqueued(const std::vector<c10::cuda::CUDAStream>& streams);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // From torch 2.13 on this overrides Work::getTimeout.
  virtual std::chrono::milliseconds getTimeout() const { return timeout_; }

 private:
  bool happened() const;
  void wait_on_host(std::optional<std::chrono::milliseconds> timeout);

  const std::shared_ptr<nccl::Communicator> communicator_;
  const std::uint64_t sequence_;
  const std::vector<at::Tensor> outputs_;
  const std::chrono::milliseconds timeout_;
  std::vector<nccl::Event> ends_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace ringcomm
