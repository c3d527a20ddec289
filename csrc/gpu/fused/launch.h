// How the host launches the fused kernels, and how their threads share a multiprocessor. A block
// has all of its registers.
//
// The registers are in four parts, and warps are dealt to the parts in turn: with 16 warps a thread
// has 128 registers, with 20 only 96, and with 12 it has 168. Data in flight take registers, too,
// so an architecture has as many movers, and as many packs of each in flight, as its compiler
// places without a spill. `arch` is __CUDA_ARCH__ of the code that runs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "gpu/fused/job.h"
#include "gpu/fused/layout.h"
#include "gpu/fused/probe.h"
#include "reduce/device_arguments.h"
#include "reduce/device_share.h"
#include "reduce/device_table.h"
#include "reduce/types.h"

namespace ringcomm::fused {

// The most bytes of a script that a block copies to shared memory.
inline constexpr std::size_t kMostSharedBytes = 32 << 10;

// Loads all kernels for the current device, and finds the architecture that they were compiled for:
// `arch`. Otherwise the first launch of each kernel would load it, and wait for kernels that run.
cudaError_t load_kernels(int* arch);

// These enqueue a kernel on `stream` of the current device, and return what the launch returned.
cudaError_t launch(const Job& job, const Reduction& reduction, int arch, cudaStream_t stream);
cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream);
// The two kernels of a probe.
cudaError_t launch_writes(const Probe& probe, cudaStream_t stream);
cudaError_t launch_finds(const Probe& probe, cudaStream_t stream);

using Kernel = void (*)(Job);
struct Kernels {
  Kernel lanes = nullptr;
  Kernel eager = nullptr;
};
// By op; null where no reduction has the key.
using KernelRow = std::array<Kernels, kNumReduceOps>;

// The kernels of these types, by dtype; null for other dtypes. Defined in kernels.h.
using KernelTable = std::array<KernelRow, kNumDTypes>;
template <DeviceTypes types>
KernelTable kernel_table();

// The kernels for data that are only moved use this key, too.
inline constexpr KernelKey kBits{DType::kUInt8, ReduceOp::kBor};

inline constexpr int kBlackwell = 1000, kHopper = 900;

// 8-bit types have 16 values to a pack.
constexpr bool is_wide(KernelKey key) { return element_size(key.dtype) == 1 && key != kBits; }

// Threads of a lane.
inline constexpr int kControlThreads = 32;
constexpr int movers_per_lane(KernelKey key, int arch) {
  if (is_wide(key)) return 160;
  return arch >= kBlackwell ? 224 : 288;
}
constexpr int threads_per_block(KernelKey key, int arch) {
  return kLanesPerBlock * (movers_per_lane(key, arch) + kControlThreads);
}

// Threads of a block of the eager kernel.
constexpr int eager_threads(KernelKey key) { return is_wide(key) ? 384 : 512; }

// Packs of 16 bytes that a mover has in flight.
RINGCOMM_HOST_DEVICE constexpr int moved_in_flight(int arch) { return arch >= kBlackwell ? 6 : 8; }
RINGCOMM_HOST_DEVICE constexpr int summed_in_flight(DType dtype, int arch) {
  const bool is_converted =
      dtype == DType::kFloat16 || (dtype == DType::kBFloat16 && arch < kHopper);
  return arch >= kBlackwell || is_converted ? 6 : 8;
}

inline constexpr int kSmallestBatch = kBatches[0];
template <ReduceOp op>
inline constexpr bool kTakesSmallestBatch = has_batch(op, 0);

// One thread's share of what a step does to data. kernel_key(dtype, op) is the kernel's. `moves`:
// the step copies the bits of the one input, whatever the type.
template <DType dtype, ReduceOp op, int arch>
RINGCOMM_HOST_DEVICE void carry_out_share(const DeviceArguments& args, bool moves,
                                          const Worker& worker) {
  constexpr int kSums = summed_in_flight(dtype, arch);
  if (args.num_outputs == 0) return;
  if (moves) {
    reduce_share<DType::kUInt8, ReduceOp::kBor, 1, moved_in_flight(arch)>(args, worker);
    return;
  }
  if constexpr (kTakesSmallestBatch<op>) {
    if (args.num_inputs <= kSmallestBatch) {
      reduce_share<dtype, op, kSmallestBatch, kSums>(args, worker);
      return;
    }
  }
  reduce_share<dtype, op, kLargestBatch, kSums>(args, worker);
}

}  // namespace ringcomm::fused
