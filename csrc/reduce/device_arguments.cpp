#include "reduce/device_arguments.h"

#include <algorithm>

namespace ringcomm {
namespace {

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

}  // namespace

DeviceLaunch plan_launch(const Reduction& reduction, const void* const* inputs, int num_inputs,
                         void* const* outputs, int num_outputs, std::size_t count,
                         int num_multiprocessors) {
  DeviceLaunch launch{};
  launch.key = kernel_key(reduction.dtype, effective_op(reduction));
  DeviceArguments& args = launch.arguments;
  args.num_inputs = num_inputs;
  args.num_outputs = num_outputs;
  args.divisor = reduction.op == ReduceOp::kAvg ? std::max(reduction.divisor, 1) : 1;
  args.float_divisor = UniformDivisor::of(args.divisor);
  args.scaled_input = reduction.op == ReduceOp::kPremulSum ? reduction.scaled_input : -1;
  args.factor = reduction.factor;
  const std::uint64_t mirror = mirror_bits(reduction.dtype, reduction.op);
  args.mirror[0] = static_cast<std::uint32_t>(mirror);
  args.mirror[1] = static_cast<std::uint32_t>(mirror >> 32);
  args.truth_table = truth_table(reduction.op);

  const std::size_t element_bytes = element_size(launch.key.dtype);
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(outputs[0]);
  std::uintptr_t differing = 0;
  std::uintptr_t any = 0;
  const auto note = [&](const void* pointer) {
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(pointer);
    differing |= bits ^ address;
    any |= bits;
  };
  for (int k = 0; k < num_inputs; ++k) {
    args.inputs[k] = static_cast<const std::byte*>(inputs[k]);
    note(inputs[k]);
  }
  for (int k = 0; k < num_outputs; ++k) {
    args.outputs[k] = static_cast<std::byte*>(outputs[k]);
    note(outputs[k]);
  }
  const std::size_t nbytes = count * element_size(reduction.dtype);
  const Partition p =
      make_partition(address, differing % kPackBytes == 0, element_bytes, nbytes / element_bytes);
  args.partition = p;
  args.element_aligned = any % element_bytes == 0;

  const std::size_t work = std::max(p.num_packs, p.head + (p.count - p.body_end));
  const std::size_t wanted = (work + kDeviceThreads - 1) / kDeviceThreads;
  const std::size_t most =
      static_cast<std::size_t>(num_multiprocessors) * blocks_per_multiprocessor(launch.key);
  launch.num_blocks = static_cast<unsigned>(std::min(wanted, most));
  // With a pack for each thread at most, the kernel that takes one at a time does nothing in vain.
  const int in_flight = wanted <= most ? kLargestBatch : num_inputs;
  while (kBatches[launch.batch] < std::min(in_flight, kLargestBatch) ||
         !has_batch(launch.key.op, launch.batch)) {
    ++launch.batch;
  }
  return launch;
}

}  // namespace ringcomm
