// Which kernel carries out a reduction, and its arguments.
//
// There are far fewer kernels than reductions, because many reductions differ by a few words that
// can be arguments of the launch:
//
//   kernel    carries out                 arguments
//   kSum      sum, avg, premul_sum        what to divide by, and which input to scale by what
//   kAvg      avg of integers             what to divide by
//   kProduct  product
//   kMin      min, and max as the min     which bits to flip before and after, so that the order
//             of mirrored values          of values turns round
//   kBor      band, bor, bxor, and all    the op's truth table, as two masks
//             of bool's
//
// Integers of one width share kernels as far as signed and unsigned have the same bits. The order
// of unsigned ones is that of signed ones with the highest bit flipped. Bitwise ops take bytes,
// whatever the type. The arguments are the same for all threads. So they make no branch diverge,
// and cost a memory-bound kernel an instruction or two per 16 bytes. Invariant: each reduction has
// the bits of reduce_host, but for the sign and payload of a NaN.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "reduce/host_device.h"
#include "reduce/partition.h"
#include "reduce/types.h"

namespace ringcomm {

inline constexpr int kMaxDeviceInputs = 64;
inline constexpr int kMaxDeviceOutputs = 2;

// What a kernel is instantiated for.
struct KernelKey {
  DType dtype;
  ReduceOp op;
  friend constexpr bool operator==(const KernelKey&, const KernelKey&) = default;
};

// Where supports().
constexpr KernelKey kernel_key(DType dtype, ReduceOp op) {
  const DType as_signed = dtype == DType::kUInt8 ? DType::kInt8 : dtype;
  if (dtype == DType::kBool) return {DType::kBool, ReduceOp::kBor};
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kPremulSum:
      return {as_signed, ReduceOp::kSum};
    case ReduceOp::kAvg:
      return {dtype, is_floating_point(dtype) ? ReduceOp::kSum : ReduceOp::kAvg};
    case ReduceOp::kProduct:
      return {as_signed, ReduceOp::kProduct};
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return {as_signed, ReduceOp::kMin};
    default:
      return {DType::kUInt8, ReduceOp::kBor};
  }
}

// a op b of a bitwise op: the bits of `differ` where a and b differ, those of `both` where both
// are set.
struct TruthTable {
  std::uint32_t differ, both;

  RINGCOMM_HOST_DEVICE std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return ((a ^ b) & differ) | ((a & b) & both);
  }
};

// Division of many float32 values by one integer, without a division per value.
//
// With r = 1/d rounded once, q = a * r is near a/d, one Newton step q += (a - q d) r makes it
// faithful, and by Markstein's theorem a second one rounds it correctly ("Computation of elementary
// functions on the IBM RISC System/6000 processor", 1990). That takes an exact remainder a - q d,
// so `a` must not be tiny. Tiny values divide in float64, where the remainder is exact, too; the
// quotient is then near enough to be rounded to float32 correctly, because a/d is either a tie
// between two float32, and exact in float64, or farther than 2^-50 from any, relatively.
// Invariant: the bits of a / d, but for the payload of a NaN.
struct UniformDivisor {
  float divisor, reciprocal;
  double wide_reciprocal;

  // divisor >= 1.
  static UniformDivisor of(int divisor) {
    const float rounded = static_cast<float>(divisor);
    return {rounded, 1.0f / rounded, 1.0 / static_cast<double>(rounded)};
  }

  RINGCOMM_HOST_DEVICE float divide(float a) const {
    constexpr float kTiny = 0x1p-60f;
    const float magnitude = std::fabs(a);
    if (magnitude < kTiny) return divide_tiny(a);
    const float estimate = a * reciprocal;
    if (!(magnitude < HUGE_VALF)) return estimate;
    const float faithful = std::fma(std::fma(-estimate, divisor, a), reciprocal, estimate);
    return std::fma(std::fma(-faithful, divisor, a), reciprocal, faithful);
  }

 private:
  RINGCOMM_HOST_DEVICE float divide_tiny(float a) const {
    const double wide = a;
    const double estimate = wide * wide_reciprocal;
    const double remainder = std::fma(-estimate, static_cast<double>(divisor), wide);
    // The sum of opposite zeros loses the sign of a zero.
    return std::copysign(static_cast<float>(std::fma(remainder, wide_reciprocal, estimate)), a);
  }
};

// The arguments of a reduction's kernel that do not depend on where its data are.
struct ReductionArguments {
  int divisor;                   // 1: nothing to divide
  UniformDivisor float_divisor;  // the same, for sums in float32
  int scaled_input;              // -1: none
  double factor;
  std::uint32_t mirror[2];  // what kMin flips in every 8 bytes, the lower half first
  TruthTable truth_table;
};

// All arguments of a kernel.
struct DeviceArguments : ReductionArguments {
  const std::byte* inputs[kMaxDeviceInputs];
  std::byte* outputs[kMaxDeviceOutputs];
  int num_inputs, num_outputs;
  Partition partition;
  bool element_aligned;  // every pointer is a multiple of the element size

  RINGCOMM_HOST_DEVICE void set_reduction(const ReductionArguments& reduction_arguments) {
    static_cast<ReductionArguments&>(*this) = reduction_arguments;
  }

  // The pointers to inputs and outputs have been set.
  RINGCOMM_HOST_DEVICE void divide_among_threads(std::size_t element_nbytes, std::size_t count) {
    const auto address = reinterpret_cast<std::uintptr_t>(outputs[0]);
    std::uintptr_t differing = 0, any = 0;
    const auto note = [&](const std::byte* pointer) {
      const auto bits = reinterpret_cast<std::uintptr_t>(pointer);
      differing |= bits ^ address;
      any |= bits;
    };
    for (int k = 0; k < num_inputs; ++k) note(inputs[k]);
    for (int k = 0; k < num_outputs; ++k) note(outputs[k]);
    partition = make_partition(address, differing % kPackBytes == 0, element_nbytes, count);
    element_aligned = any % element_nbytes == 0;
  }
};

ReductionArguments reduction_arguments_of(const Reduction& reduction);

// How many inputs' loads a kernel has in flight at once. The last takes any number of inputs, batch
// after batch.
inline constexpr int kLargestBatch = 8;
inline constexpr int kBatches[] = {2, 4, kLargestBatch};
inline constexpr int kNumBatches = 3;

// Products and averages of integers are rare, and make do with one kernel.
constexpr bool has_batch(ReduceOp op, int batch) {
  const bool rare = op == ReduceOp::kProduct || op == ReduceOp::kAvg;
  return !rare || kBatches[batch] == kLargestBatch;
}

// How many packs of each input, if all that are to be in flight are so many.
RINGCOMM_HOST_DEVICE constexpr int packs_at_once(int in_flight, int batch) {
  return in_flight > batch ? in_flight / batch : 1;
}
inline constexpr int kPacksInFlight = 4;  // of a thread of a reduction's kernel

inline constexpr int kDeviceThreads = 256;  // per block

// How many blocks a multiprocessor holds at once, and the most that a grid has for each. With 4, a
// thread has 64 registers for the packs in flight and their values; with 3, 80: 8-bit types have 16
// values to a pack.
constexpr int blocks_per_multiprocessor(KernelKey key) {
  return element_size(key.dtype) == 1 && key.op != ReduceOp::kBor ? 3 : 4;
}

struct DeviceLaunch {
  KernelKey key;
  int batch;  // an index into kBatches
  unsigned num_blocks;
  DeviceArguments arguments;
};

struct DeviceProperties {
  int num_multiprocessors;
  std::size_t l2_nbytes;
};

// For arguments that reduce_device takes, and count >= 1.
//
// Data in the L2 is shared among as many blocks as are resident, and each thread comes back for
// more: no block is started for a few packs. For data in memory, a thread has only what it loads at
// once. Blocks then begin in the order of the data, and what is under way at a time lies side by
// side.
DeviceLaunch plan_launch(const Reduction& reduction, const void* const* inputs, int num_inputs,
                         void* const* outputs, int num_outputs, std::size_t count,
                         const DeviceProperties& device);

}  // namespace ringcomm
