// The backend's group on a CUDA device: between torch's streams and allocator and the core.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "nccl/communicator.h"
#include "torch/cuda_work.h"
#include "torch/device.h"
#include "torch/errors.h"
#include "torch/store_adapter.h"

namespace ringcomm {
namespace {

using c10::cuda::CUDAStream;

std::shared_ptr<void> allocate(std::size_t nbytes, cudaStream_t stream) {
  return {c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(nbytes, stream),
          c10::cuda::CUDACachingAllocator::raw_delete};
}

nccl::Options core_options(const DeviceOptions& options) {
  return {.algorithm = options.algorithm,
          .layout = streams::Layout::with(options.num_channels, options.slice_nbytes),
          .max_ctas = options.max_ctas};
}

class CudaGroup : public DeviceGroup {
 public:
  // `device` is the current one.
  CudaGroup(shm::Group& group, c10::intrusive_ptr<c10d::Store> store, at::Device device,
            const DeviceOptions& options, std::chrono::milliseconds timeout)
      : device_(device),
        store_(std::move(store)),
        communicator_(std::make_shared<nccl::Communicator>(
            group, store_, device.index(), core_options(options), allocate, timeout)) {}

  at::Device device() const override { return device_; }

  // Operations of one group take turns, as they share its streams.
  WorkPtr launch(const Launch& launch, std::uint64_t sequence,
                 const std::function<void(streams::Collectives&)>& run) override {
    std::lock_guard lock(mutex_);
    const c10::cuda::CUDAGuard guard(device_);
    auto work = c10::make_intrusive<CudaWork>(communicator_, launch, sequence);
    begin_behind_current();
    const CUDAStream stream = external(communicator_->stream());
    {
      const c10::cuda::CUDAStreamGuard on_stream(stream);
      run(*communicator_);
    }
    record(launch.memory, stream);
    record(launch.outputs, stream);
    work->enqueued({stream});
    return work;
  }

  WorkPtr join(const Launch& launch, std::uint64_t sequence) override {
    std::lock_guard lock(mutex_);
    const c10::cuda::CUDAGuard guard(device_);
    auto work = c10::make_intrusive<CudaWork>(communicator_, launch, sequence);
    work->enqueued({external(communicator_->stream())});
    return work;
  }

  WorkPtr exchange(const Launch& launch, std::uint64_t sequence,
                   const std::vector<Message>& messages) override {
    std::lock_guard lock(mutex_);
    const c10::cuda::CUDAGuard guard(device_);
    auto work = c10::make_intrusive<CudaWork>(communicator_, launch, sequence);
    std::vector<nccl::Message> plain;
    for (const Message& message : messages) {
      const at::Tensor& flat = message.data.flat();
      plain.push_back({message.is_send, message.peer, flat.data_ptr(), flat.nbytes()});
    }
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), current().stream()));
    const std::vector<cudaStream_t> used = communicator_->run(plain, began_.get(), launch.timeout);
    std::vector<CUDAStream> streams;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const CUDAStream stream = external(used[i]);
      const c10::cuda::CUDAStreamGuard on_stream(stream);
      if (!messages[i].is_send) messages[i].data.commit();
      record({messages[i].data.flat(), messages[i].data.tensor()}, stream);
      if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
        streams.push_back(stream);
      }
    }
    work->enqueued(streams);
    return work;
  }

  void shut_down(std::chrono::milliseconds timeout) override { communicator_->shut_down(timeout); }
  void abort(const std::string& reason) override { communicator_->abort(reason); }

 private:
  CUDAStream current() const { return c10::cuda::getCurrentCUDAStream(device_.index()); }
  CUDAStream external(cudaStream_t stream) const {
    return c10::cuda::getStreamFromExternal(stream, device_.index());
  }

  void begin_behind_current() {
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), current().stream()));
    RINGCOMM_CHECK(cudaStreamWaitEvent(communicator_->stream(), began_.get(), 0));
  }

  // The memory is not given to anybody else before the stream has come this far.
  static void record(const std::vector<at::Tensor>& tensors, const CUDAStream& stream) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.is_cuda()) {
        c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
      }
    }
  }

  const at::Device device_;
  C10dStore store_;
  std::mutex mutex_;
  nccl::Event began_;
  std::shared_ptr<nccl::Communicator> communicator_;
};

}  // namespace

std::string missing_for_cuda() { return ""; }

std::unique_ptr<DeviceGroup> make_cuda_group(shm::Group& group,
                                             c10::intrusive_ptr<c10d::Store> store,
                                             at::Device device, const DeviceOptions& options,
                                             std::chrono::milliseconds timeout) {
  try {
    int num_devices = 0;
    RINGCOMM_CHECK(cudaGetDeviceCount(&num_devices));
    const c10::cuda::CUDAGuard guard(device);
    return std::make_unique<CudaGroup>(group, std::move(store), device, options, timeout);
  } catch (const Error& error) {
    throw Error(error.kind(), "making the group's part on " + device.str() + ": " + error.what());
  }
}

}  // namespace ringcomm
