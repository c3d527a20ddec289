// A fused kernel without peers, for profilers.
#ifdef RINGCOMM_WITH_CUDA
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "gpu/fused/launch.h"
#include "gpu/streams/device_collectives.h"
#include "gpu/streams/device_options.h"
#include "torch/bindings.h"
#include "torch/tensors.h"

namespace ringcomm {
namespace {

constexpr const char* kFusedAllReduce = "FusedAlone.all_reduce";
// Later than any call that will ever be made: every wait ends at once.
constexpr fused::Progress kDone = fused::Progress{1} << 62;

// One rank that is its own peers: it reads from its own outbox what it would read from theirs.
class FusedAlone : private streams::DeviceCollectives {
 public:
  FusedAlone(int world_size, const std::string& algorithm, int max_ctas)
      : DeviceCollectives(0, world_size, Selection::named(algorithm)),
        layout_{.world_size = world_size,
                .num_lanes = fused::kLanesPerBlock * max_ctas,
                .outbox_nbytes = streams::DeviceOptions{}.outbox_nbytes} {
    TORCH_CHECK_VALUE(world_size >= 2 && world_size <= fused::kMaxRanks,
                      "ring: FusedAlone: world_size must be 2 to ", fused::kMaxRanks, ", got ",
                      world_size);
    TORCH_CHECK_VALUE(max_ctas >= 1 && max_ctas <= fused::kMaxBlocks,
                      "ring: FusedAlone: max_ctas must be 1 to ", fused::kMaxBlocks, ", got ",
                      max_ctas);
  }

  void all_reduce(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op) {
    TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.is_contiguous(), "ring: ", kFusedAllReduce,
                      ": takes a contiguous CUDA tensor, got one on ", tensor.device());
    const c10::cuda::CUDAGuard guard(tensor.device());
    if (!memory_.defined()) allocate(tensor.device());
    const Elements elements = elements_to_reduce(tensor.scalar_type(), op, kFusedAllReduce);
    void* data = tensor.data_ptr();
    Collectives::all_reduce(data, data, elements.count(tensor),
                            make_reduce(elements, op, kFusedAllReduce), Timeout{0});
  }

 private:
  static at::Tensor bytes(std::size_t nbytes, const at::TensorOptions& options) {
    return at::zeros({static_cast<std::int64_t>(nbytes)}, options.dtype(at::kByte));
  }

  void allocate(at::Device device) {
    C10_CUDA_CHECK(fused::load_kernels(&arch_));
    at::Tensor counters = bytes(layout_.counters_nbytes(), at::kCPU);
    for (int lane = 0; lane < layout_.num_lanes; ++lane) {
      for (int from = 0; from < layout_.world_size; ++from) {
        std::memcpy(counters.data_ptr<std::uint8_t>() + layout_.flag_at(lane, from), &kDone,
                    sizeof(kDone));
      }
    }
    control_ = bytes(sizeof(fused::Control), at::TensorOptions().pinned_memory(true));
    memory_ = bytes(layout_.nbytes(), device);
    memory_.narrow(0, 0, counters.numel()).copy_(counters);
  }

  const fused::Script& script_of(const Program& program) {
    const auto [found, is_new] = scripts_.try_emplace(&program);
    if (is_new) {
      const fused::ScriptText text(program, rank());
      const at::Tensor written = bytes(text.nbytes(), at::kCPU);
      found->second.first = bytes(text.nbytes(), memory_.device());
      found->second.second =
          text.write(reinterpret_cast<std::byte*>(written.data_ptr()),
                     reinterpret_cast<const std::byte*>(found->second.first.data_ptr()));
      found->second.first.copy_(written);
    }
    return found->second.second;
  }

  bool goes_by_kernels() const override { return true; }
  void enqueue_program(Call call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, Timeout) override {
    if (const std::string why = fused::why_not(program, layout_); !why.empty()) {
      throw Error(ErrorKind::kInvalidArgument, why);
    }
    fused::Job job = fused::make_job(call, program, chunks, reduction, layout_, rank());
    job.script = script_of(program);
    for (int r = 0; r < world_size(); ++r) {
      job.memory[r] = reinterpret_cast<std::byte*>(memory_.data_ptr());
    }
    const std::size_t scratch_nbytes = job.num_lanes * job.scratch_nbytes;
    if (!scratch_.defined() || static_cast<std::size_t>(scratch_.numel()) < scratch_nbytes) {
      scratch_ = bytes(scratch_nbytes, memory_.device());
    }
    job.scratch = reinterpret_cast<std::byte*>(scratch_.data_ptr());
    job.control = reinterpret_cast<fused::Control*>(control_.data_ptr());
    C10_CUDA_CHECK(fused::launch(job, reduction, arch_, c10::cuda::getCurrentCUDAStream()));
  }

  const fused::Layout layout_;
  int arch_ = 0;
  at::Tensor memory_, control_, scratch_;
  std::map<const Program*, std::pair<at::Tensor, fused::Script>> scripts_;
};

}  // namespace

void bind_fused(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<FusedAlone>(
      module, "FusedAlone",
      "One rank's fused kernels with itself as all its peers, so that nothing is waited for: for "
      "profilers, which run a kernel again and again. Its sums mean nothing, but for \"one_shot\", "
      "where each comes to world_size times the tensor.")
      .def(py::init<int, const std::string&, int>(), py::arg("world_size"), py::arg("algorithm"),
           py::arg("max_ctas") = streams::DeviceOptions{}.max_ctas)
      .def("all_reduce", &FusedAlone::all_reduce, py::arg("tensor"), py::arg("op"), Unlocked(),
           "Enqueues one on the current stream, in place.");
}

}  // namespace ringcomm

#endif
