// Our kernels, on the streams of fake_stream.h.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "fake_cuda.h"
#include "fake_stream.h"
#include "fused_blocks.h"
#include "gpu/fused/launch.h"
#include "reduce/device.h"
#include "reduce/host.h"

namespace ringcomm {

cudaError_t reduce_device(const Reduction& reduction, const void* const* inputs, int num_inputs,
                          void* const* outputs, int num_outputs, std::size_t count,
                          cudaStream_t stream) {
  stream->enqueue([=, in = std::vector<const void*>(inputs, inputs + num_inputs),
                   out = std::vector<void*>(outputs, outputs + num_outputs)] {
    std::vector<Copy> copies;
    for (void* const other : std::span(out).subspan(1)) copies.push_back({other});
    reduce_host(reduction, in.data(), num_inputs, out[0], copies, count);
  });
  return cudaSuccess;
}

namespace fused {

namespace {

// A word at once, as a device does.
class ProbeMachine {
 public:
  explicit ProbeMachine(const Probe& probe) : probe_(probe) {}

  int thread() const { return 0; }
  int num_threads() const { return 1; }
  void put(LLPacket* to, const LLPacket& words) const {
    if (fake::muted_rank == probe_.rank && !is_own(to)) return;
    std::atomic_ref(to->first).store(words.first, std::memory_order_relaxed);
    std::atomic_ref(to->second).store(words.second, std::memory_order_relaxed);
  }
  LLPacket look(LLPacket* at) const {
    if (fake::misreading_rank == probe_.rank && !is_own(at)) return {1, 2};
    return {std::atomic_ref(at->first).load(std::memory_order_relaxed),
            std::atomic_ref(at->second).load(std::memory_order_relaxed)};
  }

 private:
  bool is_own(const LLPacket* at) const {
    const auto offset = reinterpret_cast<const std::byte*>(at) - probe_.lines[probe_.rank];
    return offset >= 0 && offset < static_cast<std::ptrdiff_t>(probe_.world_size * kLine);
  }
  const Probe& probe_;
};

void hang_while_it_is(const std::atomic<int>& hanging, int rank) {
  while (hanging == rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

cudaError_t launch_writes(const Probe& probe, cudaStream_t stream) {
  stream->enqueue([=] {
    hang_while_it_is(fake::hanging_rank, probe.rank);
    ProbeMachine machine(probe);
    write_patterns(machine, probe);
  });
  return cudaSuccess;
}

cudaError_t launch_finds(const Probe& probe, cudaStream_t stream) {
  stream->enqueue([=] {
    ProbeMachine machine(probe);
    find_patterns(machine, probe);
  });
  return cudaSuccess;
}

cudaError_t load_kernels(int* arch) {
  *arch = kHopper;
  return cudaSuccess;
}

cudaError_t launch(const Job& job, const Reduction& reduction, int, cudaStream_t stream) {
  stream->enqueue([=] {
    hang_while_it_is(fake::delayed_rank, job.rank);
    fused_blocks::run_lanes(job, reduction, 2, nullptr, 0, job.rank);
  });
  return cudaSuccess;
}

cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream) {
  return launch(job, reduction, kHopper, stream);
}

}  // namespace fused
}  // namespace ringcomm
