// The fused kernels. Each device_TYPES.cu includes this file and instantiates kernel_table for its
// dtypes.
#pragma once

#include <cuda_runtime.h>

#include <cuda/atomic>
#include <utility>

#include "gpu/fused/eager.h"
#include "gpu/fused/lane.h"
#include "gpu/fused/launch.h"
#include "reduce/device_table.h"

namespace ringcomm::fused {

// How threads signal to other ranks and to the host. All devices and the host use the flags and the
// words of the host, so they have system scope.
class Signals {
 public:
  RINGCOMM_DEVICE Signals(Control* control, int lane) : control_(control), lane_(lane) {}

  RINGCOMM_DEVICE Progress acquire(Progress& flag, Why) {
    return System<Progress>(flag).load(cuda::memory_order_acquire);
  }
  RINGCOMM_DEVICE void release(Progress& flag, Progress value) {
    System<Progress>(flag).store(value, cuda::memory_order_release);
  }

  // libcu++ has no accesses of two words.
  RINGCOMM_DEVICE void put(LLPacket* to, const LLPacket& words) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "l"(words.first), "l"(words.second)
                 : "memory");
  }
  RINGCOMM_DEVICE LLPacket look(const LLPacket* at) {
    LLPacket words;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words.first), "=l"(words.second)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
    return words;
  }

  // The words of the host are far away: a look at one takes as long as many at a flag.
  RINGCOMM_DEVICE bool aborted(std::uint32_t spins, int peer) {
    if (spins % kSpinsPerLook != kSpinsPerLook - 1) return false;
    is_reporting_ = true;
    waits_for().store(peer + 1, cuda::memory_order_relaxed);
    return System<std::uint32_t>(control_->aborted).load(cuda::memory_order_relaxed) != 0;
  }
  RINGCOMM_DEVICE void waited() {
    if (is_reporting_) waits_for().store(0, cuda::memory_order_relaxed);
    is_reporting_ = false;
  }

 private:
  static constexpr std::uint32_t kSpinsPerLook = 4096;

  template <typename T>
  using System = cuda::atomic_ref<T, cuda::thread_scope_system>;

  RINGCOMM_DEVICE System<std::uint32_t> waits_for() {
    return System<std::uint32_t>(control_->waits_for[lane_]);
  }

  Control* const control_;
  const int lane_;
  bool is_reporting_ = false;
};

#ifdef __CUDA_ARCH__
inline constexpr int kArch = __CUDA_ARCH__;
#else
inline constexpr int kArch = 0;  // the host's half of the file runs nothing
#endif

template <DType dtype, ReduceOp op>
inline constexpr int kMovers = movers_per_lane({dtype, op}, kArch);
template <DType dtype, ReduceOp op>
inline constexpr int kLaneThreads = kMovers<dtype, op> + kControlThreads;
template <DType dtype, ReduceOp op>
inline constexpr int kThreads = threads_per_block({dtype, op}, kArch);
template <DType dtype, ReduceOp op>
inline constexpr int kEagerThreads = eager_threads({dtype, op});

// A thread of a lane, of the control or a mover, as lane.h needs it.
template <DType dtype, ReduceOp op>
class LaneMachine : public Signals {
 public:
  // `number` is the lane's in its block.
  RINGCOMM_DEVICE LaneMachine(WorkItem* work_items, fused::Control* control, int lane, int number)
      : Signals(control, lane), work_items_(work_items), barrier_(1 + number) {}

  RINGCOMM_DEVICE int thread() const { return static_cast<int>(threadIdx.x) % kControlThreads; }
  RINGCOMM_DEVICE int num_threads() const { return kControlThreads; }
  RINGCOMM_DEVICE bool all(bool value) const { return __all_sync(~0u, value) != 0; }
  RINGCOMM_DEVICE WorkItem& work_item(int turn) const { return work_items_[turn % kWorkItems]; }
  // At kReady the control could arrive and go on, and at kMoved the movers could, but racecheck
  // does not see that order.
  RINGCOMM_DEVICE void sync(Why) const {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier_), "n"(kLaneThreads<dtype, op>) : "memory");
  }

  RINGCOMM_DEVICE void carry_out(const WorkItem& work_item) const {
    const auto mover = threadIdx.x % kLaneThreads<dtype, op>;
    carry_out_share<dtype, op, kArch>(work_item.arguments, work_item.moves,
                                      {0, 1, mover, kMovers<dtype, op>});
  }

 private:
  WorkItem* const work_items_;
  const int barrier_;  // 0 is the block's
};

// A thread of a block in the eager kernel.
class EagerMachine : public Signals {
 public:
  RINGCOMM_DEVICE EagerMachine(const DeviceArguments& arguments, fused::Control* control, int lane)
      : Signals(control, lane), arguments_(arguments) {}

  RINGCOMM_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  RINGCOMM_DEVICE int num_threads() const { return static_cast<int>(blockDim.x); }
  RINGCOMM_DEVICE bool any(bool value) { return __syncthreads_or(value) != 0; }
  RINGCOMM_DEVICE const DeviceArguments& arguments() const { return arguments_; }

 private:
  const DeviceArguments& arguments_;
};

// All threads of the block call this. It copies the script to memory that is read faster, if there
// is room.
RINGCOMM_DEVICE Script copied(const Script& script, std::byte* memory) {
  if (script.nbytes > kMostSharedBytes) return script;
  for (std::size_t at = 4 * threadIdx.x; at < script.nbytes; at += 4 * blockDim.x) {
    *reinterpret_cast<std::uint32_t*>(memory + at) =
        *reinterpret_cast<const std::uint32_t*>(script.text() + at);
  }
  return script.at(memory);
}

template <DType dtype, ReduceOp op>
__global__ void __launch_bounds__(kThreads<dtype, op>, 1)
    fused_kernel(const __grid_constant__ Job job) {
  constexpr int kLane = kLaneThreads<dtype, op>;
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ WorkItem work_items[kLanesPerBlock][kWorkItems];
  const int number = static_cast<int>(threadIdx.x) / kLane;
  const int lane = static_cast<int>(blockIdx.x) * kLanesPerBlock + number;
  LaneMachine<dtype, op> machine(work_items[number], job.control, lane, number);
  const Script script = copied(job.script, memory);
  if (lane >= job.num_lanes) {
    __syncthreads();
  } else if (static_cast<int>(threadIdx.x) % kLane < kMovers<dtype, op>) {
    __syncthreads();
    move_data(machine);
  } else {
    LaneControl control(machine, job, script, lane);  // it loads meanwhile
    __syncthreads();
    control.run();
  }
}

template <DType dtype, ReduceOp op>
__global__ void __launch_bounds__(kEagerThreads<dtype, op>, 1)
    eager_kernel(const __grid_constant__ Job job) {
  __shared__ DeviceArguments arguments;
  if (threadIdx.x == 0) arguments.set_reduction(job.reduction_arguments);
  __syncthreads();
  const auto lane = static_cast<int>(blockIdx.x);
  EagerMachine machine(arguments, job.control, lane);
  if constexpr (dtype == kBits.dtype && op == kBits.op) {
    if (job.gathers) {
      EagerGather<EagerMachine>(machine, job, lane).run();
      return;
    }
  }
  EagerSum<dtype, op, EagerMachine>(machine, job, lane).run();
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

template <DeviceTypes types>
KernelTable kernel_table() {
  return rows_of<types, KernelRow>(
      [](auto dtype) { return kernel_row<static_cast<DType>(decltype(dtype)::value)>(); });
}

}  // namespace ringcomm::fused
