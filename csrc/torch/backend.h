// The torch.distributed backend "ring".
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "communicator.h"
#include "queue.h"
#include "torch/device.h"
#include "torch/launch.h"
#include "torch/tensors.h"
#include "torch/work.h"

namespace ringcomm {

// Every collective checks what one rank can know of its arguments and throws before anything is
// sent: ValueError, or NotImplementedError for a device without an executor. What takes two ranks
// to see, time-outs and lost peers end the Work with a DistBackendError.
//
// Operations run in the order they were called. A synchronous one runs on the calling thread when
// nothing is ahead of it; the others run on the queue's threads, sends and receives apart from
// them.
class RingBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("ring", timeout) {}
    // From torch 2.14 on this overrides Backend::Options::clone.
    virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const {
      return c10::make_intrusive<Options>(*this);
    }

    Algorithm algorithm = Algorithm::kAuto;
    int num_channels = 1;          // on devices
    std::size_t slice_nbytes = 0;  // on devices
    int max_ctas = 1;              // on devices
    bool graphs = false;           // on devices
  };

  RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
              c10::intrusive_ptr<Options> options);
  ~RingBackend() override;

  const std::string getBackendName() const override { return "ring"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  // From torch 2.14 on this overrides Backend::gather_into_tensor.
  virtual WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                     const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Between the two, every operation is asynchronous; endCoalescing returns one Work for all.
  // supportsCoalescing is true only where there are devices, whose messages must begin together: it
  // makes torch coalesce each batch of messages, and keep a group that raised meanwhile from ever
  // running a collective again.
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Splitting makes a group from the parent's store. supportsSplitting stays false: torch would
  // then ask the ranks outside of a new group to take part, through a method that backends written
  // in C++ cannot offer.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // Connects the device with all other ranks' now, which the first collective there does otherwise.
  void eagerConnectSingleDevice(at::Device device) override;

  void abort() override;
  void shutdown() override;

  // all_reduce in place, on the calling thread, without a Work. False if that cannot be done now
  // (operations are queued, or the tensor is not flat), and then nothing has been done.
  bool all_reduce_now(const at::Tensor& tensor, const c10d::ReduceOp& op);

 private:
  // `run` does the whole operation, with checked arguments, on the communicator it is given: the
  // host's, or that of the device that the memory lies on. It throws on failure.
  template <typename Run>
  WorkPtr launch(Launch launch, Run run) {
    if (!launch.memory.empty() && !launch.memory.front().is_cpu()) {
      return launch_on_device(std::move(launch), std::move(run));
    }
    return launch_on_host(std::move(launch), [communicator = communicator_, run = std::move(run)] {
      run(*communicator);
    });
  }
  WorkPtr launch_on_host(Launch launch, std::function<void()> run);
  WorkPtr launch_on_device(Launch launch, std::function<void(streams::Collectives&)> run);

  WorkPtr launch_message(shm::Message::Kind kind, Tensors& tensors, int peer, int tag,
                         c10d::OpType type, const char* title);
  WorkPtr launch_message_on_device(bool sends, Tensors& tensors, int peer, c10d::OpType type,
                                   const char* title);

  // This rank's part on the device, which the first call makes.
  DeviceGroup& device_group(at::Device device);

  // The operations between startCoalescing and endCoalescing, or those of one coalesced call, which
  // share a work and an event for the profiler, and begin only when all have been checked. On a
  // device, messages begin together at the end.
  struct Coalescing {
    bool in_one_call;
    std::vector<c10::intrusive_ptr<RingWork>> parts = {};
    std::vector<Queue::Operation> held = {};
    std::optional<at::Device> device = {};
    std::vector<std::function<void()>> held_on_device = {};
    std::vector<DeviceGroup::Message> messages = {};
    Tensors outputs = {};
  };
  WorkPtr coalesce(c10d::OpType type, const char* title, const Tensors& inputs,
                   const Tensors& outputs, const std::function<void()>& body);
  WorkPtr join(Coalescing coalesced, c10d::OpType type, const char* title,
               const std::optional<Tensors>& inputs, const Tensors& outputs);

  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const {
    return timeout <= std::chrono::milliseconds(0) ? options_->timeout : timeout;
  }
  void close(const std::string& reason, bool abort);

  const c10::intrusive_ptr<Options> options_;
  // Before the communicator: operations that are queued when the backend goes still need it.
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Queue> queue_;
  std::atomic<std::uint64_t> sequence_ = 0;  // callbacks launch operations too
  std::optional<Coalescing> coalescing_;

  std::mutex device_mutex_;
  std::unique_ptr<DeviceGroup> device_group_;
};

}  // namespace ringcomm
