// The fused kernels of one dtype. Each device_TYPES.cu includes this file and instantiates
// kernel_row for its dtypes.
#pragma once

#include <cuda_runtime.h>

#include <cuda/atomic>
#include <utility>

#include "fused/eager.h"
#include "fused/lane.h"
#include "fused/launch.h"
#include "fused/rows.h"
#include "fused/share.h"
#include "reduce/device_table.h"

namespace ringcomm::fused {

template <DType dtype, ReduceOp op>
inline constexpr int kThreads = threads_per_block({dtype, op});

// A thread block, as lane.h wants it. Flags and the host's word are for all devices and the host:
// system scope.
template <DType dtype, ReduceOp op>
class BlockMachine {
 public:
  RINGCOMM_DEVICE BlockMachine(DeviceArguments& arguments, Control* control)
      : arguments_(arguments), control_(control) {}

  RINGCOMM_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  RINGCOMM_DEVICE int num_threads() const { return kThreads<dtype, op>; }
  RINGCOMM_DEVICE void sync(Why) { __syncthreads(); }
  RINGCOMM_DEVICE bool any(bool value, Why) { return __syncthreads_or(value) != 0; }

  RINGCOMM_DEVICE Progress acquire(Progress& flag, Why) {
    return System<Progress>(flag).load(cuda::memory_order_acquire);
  }
  RINGCOMM_DEVICE void release(Progress& flag, Progress value) {
    System<Progress>(flag).store(value, cuda::memory_order_release);
  }

  RINGCOMM_DEVICE void put(Word& word, Word value) {
    System<Word>(word).store(value, cuda::memory_order_relaxed);
  }
  RINGCOMM_DEVICE Word look(Word& word) {
    return System<Word>(word).load(cuda::memory_order_relaxed);
  }

  // The host's word is far away: a look at it takes as long as many at a flag.
  RINGCOMM_DEVICE bool gives_up(std::uint32_t spins, int peer) {
    if (spins % kSpinsPerLook != kSpinsPerLook - 1) return false;
    tells_ = true;
    waits_for().store(peer + 1, cuda::memory_order_relaxed);
    return System<std::uint32_t>(control_->gives_up).load(cuda::memory_order_relaxed) != 0;
  }
  RINGCOMM_DEVICE void waited() {
    if (tells_) waits_for().store(0, cuda::memory_order_relaxed);
    tells_ = false;
  }

  RINGCOMM_DEVICE DeviceArguments& arguments() { return arguments_; }
  RINGCOMM_DEVICE void carry_out(bool moves) {
    carry_out_share<dtype, op>(arguments_, moves, {0, 1, threadIdx.x, kThreads<dtype, op>});
  }

 private:
  static constexpr std::uint32_t kSpinsPerLook = 4096;

  template <typename T>
  using System = cuda::atomic_ref<T, cuda::thread_scope_system>;

  RINGCOMM_DEVICE System<std::uint32_t> waits_for() {
    return System<std::uint32_t>(control_->waits_for[blockIdx.x]);
  }

  DeviceArguments& arguments_;
  Control* const control_;
  bool tells_ = false;
};

template <DType dtype, ReduceOp op>
__global__ void __launch_bounds__(kThreads<dtype, op>, 1)
    fused_kernel(const __grid_constant__ Job job) {
  __shared__ DeviceArguments arguments;
  if (threadIdx.x == 0) arguments = job.told;
  __syncthreads();
  BlockMachine<dtype, op> machine(arguments, job.control);
  Lane(machine, job, static_cast<int>(blockIdx.x)).run();
}

template <DType dtype, ReduceOp op>
__global__ void __launch_bounds__(kThreads<dtype, op>, 1)
    eager_kernel(const __grid_constant__ Job job) {
  __shared__ DeviceArguments arguments;
  if (threadIdx.x == 0) arguments = job.told;
  __syncthreads();
  using Machine = BlockMachine<dtype, op>;
  Machine machine(arguments, job.control);
  const auto lane = static_cast<int>(blockIdx.x);
  if constexpr (dtype == kBits.dtype && op == kBits.op) {
    if (job.gathers) {
      EagerGather<Machine>(machine, job, lane).run();
      return;
    }
  }
  EagerSum<dtype, op, Machine>(machine, job, lane).run();
}

template <DType dtype>
KernelRow kernel_row() {
  const auto of = []<int op>(std::integral_constant<int, op>) -> Kernels {
    constexpr auto kOp = static_cast<ReduceOp>(op);
    if constexpr (is_kernel(dtype, kOp)) {
      return {fused_kernel<dtype, kOp>, eager_kernel<dtype, kOp>};
    } else {
      return {};
    }
  };
  return [&]<int... op>(std::integer_sequence<int, op...>) {
    return KernelRow{of(std::integral_constant<int, op>())...};
  }(std::make_integer_sequence<int, kNumReduceOps>());
}

}  // namespace ringcomm::fused
