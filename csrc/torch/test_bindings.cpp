// ringcomm._C.testing: what only tests and benchmarks call. Loops that are timed without Python
// between the calls, engines between hosts without a group, reductions without a collective, a
// fused kernel without peers.
#include <ATen/ATen.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "core/text.h"
#include "gpu/streams/cost.h"
#include "plan/verify.h"
#include "reduce/host.h"
#include "torch/bindings.h"
#include "torch/links.h"
#include "torch/store_adapter.h"
#include "torch/tensors.h"

#ifdef RINGCOMM_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <map>
#include <span>

#include "gpu/fused/launch.h"
#include "gpu/streams/device_collectives.h"
#include "reduce/device.h"
#endif

namespace py = pybind11;

namespace ringcomm {
namespace {

// Any of torch's backends, so that all are timed by the same loop.
void repeat_all_reduce(const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor,
                       c10d::ReduceOp::RedOpType op, int repeats) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  for (int i = 0; i < repeats; ++i) backend->allreduce(tensors, options)->wait();
}

// What no message between two cores can be faster than twice of. The lines are those of the first
// number and of the 16th, which no prefetcher fetches with it.
double line_round_trip(const at::Tensor& shared, bool begins, std::int64_t rounds) {
  using std::chrono::steady_clock;
  TORCH_CHECK_VALUE(shared.scalar_type() == at::kLong && shared.is_contiguous() &&
                        shared.is_cpu() && shared.numel() >= 32,
                    "ring: line_round_trip: takes 32 int64 that two processes share");
  auto* numbers = shared.mutable_data_ptr<std::int64_t>();
  std::atomic_ref<std::int64_t> there(numbers[0]), back(numbers[16]);
  const auto await = [](std::atomic_ref<std::int64_t> number, std::int64_t value) {
    const auto began = steady_clock::now();
    for (std::uint32_t looks = 1; number.load(std::memory_order_acquire) != value; ++looks) {
      if (looks % (1 << 20) != 0) continue;
      TORCH_CHECK(steady_clock::now() - began < std::chrono::seconds(10),
                  "ring: line_round_trip: the other process does not answer");
    }
  };
  const auto began = steady_clock::now();
  for (std::int64_t round = 1; round <= rounds; ++round) {
    if (begins) {
      there.store(round, std::memory_order_release);
      await(back, round);
    } else {
      await(there, round);
      back.store(round, std::memory_order_release);
    }
  }
  return std::chrono::duration<double>(steady_clock::now() - began).count() /
         static_cast<double>(rounds);
}

// A posted message, with its tensor. Its destructor cancels it, as nothing waits for it any more.
class Posted {
 public:
  Posted(std::shared_ptr<links::Engine> engine, at::Tensor tensor)
      : engine_(std::move(engine)), tensor_(std::move(tensor)) {}
  ~Posted() {
    const py::gil_scoped_release release;
    cancel();
  }

  std::byte* data() { return static_cast<std::byte*>(tensor_.data_ptr()); }
  links::Request& request() { return request_; }
  void cancel() { engine_->cancel(request_); }

  // Whether it succeeds within that many seconds.
  bool wait(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (int idle = 0; request_.pending() && std::chrono::steady_clock::now() < end; ++idle) {
      engine_->progress();
      if (request_.pending() && idle > 1000) engine_->sleep(std::chrono::milliseconds(1));
    }
    return !request_.pending() && !request_.failed();
  }

 private:
  const std::shared_ptr<links::Engine> engine_;
  const at::Tensor tensor_;
  links::Request request_;
};

template <bool is_send>
std::shared_ptr<Posted> post(const std::shared_ptr<links::Engine>& engine, int peer,
                             std::uint8_t stream, std::uint64_t number, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.is_cpu(), "ring: not a dense CPU tensor");
  const auto posted = std::make_shared<Posted>(engine, tensor);
  const std::span bytes(posted->data(), tensor.nbytes());
  if constexpr (is_send) {
    engine->send(peer, {stream, number}, bytes, posted->request());
  } else {
    engine->recv(peer, {stream, number}, bytes, posted->request());
  }
  return posted;
}

// Not owned yet: what owns it takes Python's lock.
links::Engine* new_engine(const std::string& wanted, const c10::intrusive_ptr<c10d::Store>& store,
                          int rank, int world_size) {
  return make_engine(wanted, std::make_shared<C10dStore>(store), rank, world_size).release();
}

void bind_engines(py::module_& m) {
  using links::Engine;
  py::class_<Posted, std::shared_ptr<Posted>>(m, "Posted")
      .def("wait", &Posted::wait, py::arg("seconds"), Unlocked())
      .def("cancel", &Posted::cancel, Unlocked())
      .def_property_readonly("pending", [](Posted& posted) { return posted.request().pending(); })
      .def_property_readonly("failed", [](Posted& posted) { return posted.request().failed(); })
      .def_property_readonly("nbytes", [](Posted& posted) { return posted.request().nbytes; });
  py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
      .def(py::init(&new_engine), py::arg("wanted"), py::arg("store"), py::arg("rank"),
           py::arg("world_size"), Unlocked())
      .def("send", &post<true>, py::arg("peer"), py::arg("stream"), py::arg("number"),
           py::arg("tensor"), Unlocked())
      .def("recv", &post<false>, py::arg("peer"), py::arg("stream"), py::arg("number"),
           py::arg("tensor"), Unlocked())
      .def("progress", &Engine::progress, Unlocked())
      .def("flushed", &Engine::flushed, Unlocked())
      .def("describe", [](Engine& engine) { return valid_utf8(engine.describe()); })
      .def(
          "failure", [](Engine& engine, int peer) { return valid_utf8(engine.failure(peer)); },
          py::arg("peer"), Unlocked());
}

constexpr const char* kReduceLocal = "reduce_local";

std::vector<std::string> host_instructions() {
  std::vector<std::string> names;
  for (const HostIsa& isa : supported_host_isas()) names.emplace_back(isa.name);
  return names;
}

const HostTable& table_of(const std::string& instructions) {
  std::string names;
  for (const HostIsa& isa : supported_host_isas()) {
    if (instructions == isa.name) return *isa.table;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  TORCH_CHECK_VALUE(false, "ring: ", kReduceLocal, ": instructions is ", instructions,
                    "; this machine has ", names);
}

void reduce_local(const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                  c10d::ReduceOp::RedOpType op, const std::string& instructions) {
  TORCH_CHECK_VALUE(!inputs.empty(), "ring: ", kReduceLocal,
                    ": takes at least one input, got none");
  TORCH_CHECK_VALUE(op != c10d::ReduceOp::PREMUL_SUM, "ring: ", kReduceLocal,
                    ": PREMUL_SUM needs a factor, which this function does not take");
  std::vector<const void*> pointers;
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_VALUE(
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() &&
            input.device() == output.device() && input.is_contiguous() && output.is_contiguous(),
        "ring: ", kReduceLocal, ": inputs and output must be contiguous and agree in dtype, ",
        "number of elements and device; got an input of ", input.numel(), " ", input.scalar_type(),
        " on ", input.device(), " and an output of ", output.numel(), " ", output.scalar_type(),
        " on ", output.device());
    pointers.push_back(input.const_data_ptr());
  }
  const Elements elements = elements_to_reduce(output.scalar_type(), op, kReduceLocal);
  const Reduction reduction{
      .dtype = elements.dtype,
      .op = make_reduce(elements, op, kReduceLocal).op,
      .divisor = op == c10d::ReduceOp::AVG ? static_cast<int>(inputs.size()) : 1};
  const std::size_t count = elements.count(output);
  void* result = output.data_ptr();
#ifdef RINGCOMM_WITH_CUDA
  if (output.is_cuda()) {
    const c10::cuda::CUDAGuard guard(output.device());
    C10_CUDA_CHECK(reduce_device(reduction, pointers.data(), static_cast<int>(pointers.size()),
                                 &result, 1, count, c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  TORCH_CHECK_NOT_IMPLEMENTED(output.is_cpu(), "ring: ", kReduceLocal,
                              ": takes CPU tensors, and CUDA tensors where ringcomm was built with "
                              "CUDA; got one on ",
                              output.device());
  const auto num_inputs = static_cast<int>(pointers.size());
  if (instructions.empty()) {
    return reduce_host(reduction, pointers.data(), num_inputs, result, {}, count);
  }
  const HostKernel kernel =
      table_of(instructions)[static_cast<std::size_t>(reduction.dtype)]
                            [static_cast<std::size_t>(effective_op(reduction))];
  kernel(reduction, pointers.data(), num_inputs, 0, result, count);
}

#ifdef RINGCOMM_WITH_CUDA

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

void bind_fused(py::module_& module) {
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

#endif

}  // namespace

void bind_tests(py::module_& parent) {
  py::module_ m = parent.def_submodule("testing", "What only tests and benchmarks call.");
  m.def("repeat_all_reduce", &repeat_all_reduce, py::arg("backend"), py::arg("tensor"),
        py::arg("op"), py::arg("repeats"), Unlocked(),
        "Calls all_reduce in place, and wait() on its work, so many times.");
  m.def("line_round_trip", &line_round_trip, py::arg("shared"), py::arg("begins"),
        py::arg("rounds"), Unlocked(),
        "Seconds for a cache line to another core and one back, where one of two processes begins; "
        "`shared` is 32 int64, zeros at first.");
  bind_engines(m);
#ifdef RINGCOMM_WITH_CUDA
  bind_fused(m);
#endif
  m.def("reduce_local", &reduce_local, py::arg("inputs"), py::arg("output"), py::arg("op"),
        py::arg("instructions") = "", Unlocked(),
        "Writes op over the inputs to output, in one pass, by the code that the executors use; on "
        "a GPU, on the current stream. instructions: of host_instructions(), for tensors on the "
        "CPU; empty: the last of them.");
  m.def("host_instructions", &host_instructions,
        "The instruction sets that the reductions are compiled for and this machine has.");
  m.def("verify_chunks", verify_chunks, py::arg("collective"), py::arg("world_size"),
        py::arg("plan_of"), py::arg("chunks"), py::arg("root") = 0);
  m.attr("CALL_SECONDS") = streams::kCallSeconds;
  m.attr("LAUNCH_SECONDS") = streams::kLaunchSeconds;
  m.attr("REDUCTION_SECONDS") = streams::kReductionSeconds;
  m.attr("COPY_SECONDS") = streams::kCopySeconds;
  m.attr("EVENT_SECONDS") = streams::kEventSeconds;
  m.attr("WIRE_BANDWIDTH") = streams::kWireBandwidth;
}

}  // namespace ringcomm
