#include "reduce/device_arguments.h"

#include <algorithm>

#include "reduce/float_mode.h"

namespace ringcomm {
namespace {

constexpr std::size_t kMostBlocks = (1u << 31) - 1;  // of a grid

// The bits of 8 bytes whose flipping makes kMin of the kernel's type the op.
std::uint64_t mirror_bits(DType dtype, ReduceOp op) {
  std::uint64_t highest = 1ull << (8 * element_size(dtype) - 1);
  for (std::size_t width = 8 * element_size(dtype); width < 64; width *= 2) {
    highest |= highest << width;
  }
  const std::uint64_t to_signed = dtype == DType::kUInt8 ? highest : 0;
  if (op != ReduceOp::kMax) return to_signed;
  return is_floating_point(dtype) ? highest : ~to_signed;
}

TruthTable truth_table(ReduceOp op) {
  switch (op) {
    case ReduceOp::kBand:
    case ReduceOp::kMin:
    case ReduceOp::kProduct:
      return {0, ~0u};
    case ReduceOp::kBxor:
      return {~0u, 0};
    default:
      return {~0u, ~0u};
  }
}

// Its reciprocals are rounded to nearest: a kernel depends on it.
UniformDivisor divisor_of(int divisor) {
  const DefaultFloatMode mode;
  pin(divisor);
  UniformDivisor rounded = UniformDivisor::of(divisor);
  pin(rounded);
  return rounded;
}

}  // namespace

ReductionArguments reduction_arguments_of(const Reduction& reduction) {
  ReductionArguments reduction_arguments{};
  reduction_arguments.divisor = reduction.op == ReduceOp::kAvg ? std::max(reduction.divisor, 1) : 1;
  reduction_arguments.float_divisor = divisor_of(reduction_arguments.divisor);
  reduction_arguments.scaled_input =
      reduction.op == ReduceOp::kPremulSum ? reduction.scaled_input : -1;
  reduction_arguments.factor = reduction.factor;
  const std::uint64_t mirror = mirror_bits(reduction.dtype, reduction.op);
  reduction_arguments.mirror[0] = static_cast<std::uint32_t>(mirror);
  reduction_arguments.mirror[1] = static_cast<std::uint32_t>(mirror >> 32);
  reduction_arguments.truth_table = truth_table(reduction.op);
  return reduction_arguments;
}

DeviceLaunch plan_launch(const Reduction& reduction, const void* const* inputs, int num_inputs,
                         void* const* outputs, int num_outputs, std::size_t count,
                         const DeviceProperties& device) {
  DeviceLaunch launch{};
  launch.key = kernel_key(reduction.dtype, effective_op(reduction));
  DeviceArguments& args = launch.arguments;
  args.set_reduction(reduction_arguments_of(reduction));
  args.num_inputs = num_inputs;
  args.num_outputs = num_outputs;
  for (int k = 0; k < num_inputs; ++k) args.inputs[k] = static_cast<const std::byte*>(inputs[k]);
  for (int k = 0; k < num_outputs; ++k) args.outputs[k] = static_cast<std::byte*>(outputs[k]);
  const std::size_t element_nbytes = element_size(launch.key.dtype);
  args.divide_among_threads(element_nbytes, count * element_size(reduction.dtype) / element_nbytes);
  const Partition& p = args.partition;

  const std::size_t work = std::max(p.num_packs, p.head + (p.count - p.body_end));
  const std::size_t wanted = (work + kDeviceThreads - 1) / kDeviceThreads;
  const std::size_t most =
      static_cast<std::size_t>(device.num_multiprocessors) * blocks_per_multiprocessor(launch.key);
  // If each thread has one pack at most, the kernel that takes one at a time does no useless work.
  const int in_flight = wanted <= most ? kLargestBatch : num_inputs;
  while (kBatches[launch.batch] < std::min(in_flight, kLargestBatch) ||
         !has_batch(launch.key.op, launch.batch)) {
    ++launch.batch;
  }
  const std::size_t nbytes = count * element_size(reduction.dtype) * (num_inputs + num_outputs);
  const std::size_t packs = packs_at_once(kPacksInFlight, kBatches[launch.batch]);
  const std::size_t blocks =
      nbytes > device.l2_nbytes ? (wanted + packs - 1) / packs : std::min(wanted, most);
  launch.num_blocks = static_cast<unsigned>(std::min<std::size_t>(blocks, kMostBlocks));
  return launch;
}

}  // namespace ringcomm
