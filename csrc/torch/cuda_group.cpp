// The backend's group on a CUDA device: between torch's streams and allocator and the core.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <string>
#include <utility>

#include "nccl/communicator.h"
#include "torch/cuda_work.h"
#include "torch/device.h"
#include "torch/errors.h"

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
          .max_ctas = options.max_ctas,
          .graphs = options.graphs};
}

class CudaGroup : public DeviceGroup {
 public:
  // `device` is the current one.
  CudaGroup(shm::Group& group, at::Device device, const DeviceOptions& options)
      : device_(device), communicator_(group, device.index(), core_options(options), allocate) {}

  // Members may use the device as they go.
  ~CudaGroup() override { abort("the process group is closed"); }

  at::Device device() const override { return device_; }

  void connect(std::chrono::milliseconds timeout) override {
    const c10::cuda::CUDAGuard guard(device_);
    communicator_.connect(timeout);
  }

  WorkPtr launch(const Launch& launch, std::uint64_t sequence,
                 const std::function<void(streams::Collectives&)>& run) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(launch, sequence);
    finish(*work, communicator_.enqueue(current().stream(), [&](streams::Collectives& collectives) {
      const c10::cuda::CUDAStreamGuard on_stream(external(communicator_.stream()));
      run(collectives);
    }));
    return work;
  }

  WorkPtr join(const Launch& launch, std::uint64_t sequence) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(launch, sequence);
    finish(*work, communicator_.end_of_all());
    return work;
  }

  WorkPtr exchange(const Launch& launch, std::uint64_t sequence,
                   const std::vector<Message>& messages) override {
    const c10::cuda::CUDAGuard guard(device_);
    auto work = make_work(launch, sequence);
    std::vector<nccl::Message> plain;
    for (const Message& message : messages) {
      const at::Tensor& flat = message.data.flat();
      plain.push_back({message.is_send, message.peer, flat.data_ptr(), flat.nbytes()});
    }
    const auto commit = [&](std::size_t i, cudaStream_t stream) {
      if (messages[i].is_send) return;
      const c10::cuda::CUDAStreamGuard on_stream(external(stream));
      messages[i].data.commit();
    };
    finish(*work, communicator_.exchange(current().stream(), plain, launch.timeout, commit));
    return work;
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
  CUDAStream current() const { return c10::cuda::getCurrentCUDAStream(device_.index()); }
  CUDAStream external(cudaStream_t stream) const {
    return c10::cuda::getStreamFromExternal(stream, device_.index());
  }

  c10::intrusive_ptr<CudaWork> make_work(const Launch& launch, std::uint64_t sequence) {
    shelf_->sweep();
    return c10::make_intrusive<CudaWork>(communicator_.rank(), launch, sequence, current(),
                                         communicator_.failure(), shelf_);
  }

  void finish(CudaWork& work, const nccl::Enqueued& enqueued) const {
    work.enqueued(enqueued.end, external(enqueued.stream));
  }

  const at::Device device_;
  using Shelf = nccl::Shelf<at::Tensor>;
  const std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
  nccl::Communicator communicator_;  // its streams end before the shelf
};

}  // namespace

std::string missing_for_cuda() { return ""; }

std::unique_ptr<DeviceGroup> make_cuda_group(shm::Group& group, at::Device device,
                                             const DeviceOptions& options) {
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
