#include "gpu/streams/device_collectives.h"

#include <algorithm>
#include <exception>

#include "core/status.h"
#include "gpu/streams/cost.h"
#include "plan/collective.h"

namespace ringcomm::streams {
namespace {

constexpr auto kAny = KernelChoice::Sums::kAny;
constexpr auto kOnce = KernelChoice::Sums::kRoundedOnce;
constexpr int kAllRanks = KernelChoice::kAllRanks;
constexpr std::size_t kAllSizes = KernelChoice::kAllSizes;
constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;

// Measured among 4 ranks that shared a GPU (benchmarks/results/gpu-2026-11-27/fused_kernel.csv):
// 1 MiB by one_shot in 13 us, direct 26, ring 29; 16 MiB by the ring in 44 us, one_shot 61,
// direct 64. The others are arithmetic: an action takes 5.1 us, and a GPU sends 370 GB/s.
constexpr KernelChoice kKernelChoices[] = {
    {Collective::kAllReduce, kOnce, 3, 8 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kOnce, kAllRanks, 4 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kOnce, kAllRanks, kAllSizes, AlgorithmFamily::kDirect},
    {Collective::kAllReduce, kAny, 3, 8 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, 3, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllReduce, kAny, 4, 1 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, 4, 8 * kMiB, AlgorithmFamily::kDoubling},
    {Collective::kAllReduce, kAny, 4, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllReduce, kAny, 7, 4 * kMiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, 7, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllReduce, kAny, kAllRanks, 512 * kKiB, AlgorithmFamily::kOneShot},
    {Collective::kAllReduce, kAny, kAllRanks, 8 * kMiB, AlgorithmFamily::kDoubling},
    {Collective::kAllReduce, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kReduceScatter, kOnce, kAllRanks, kAllSizes, AlgorithmFamily::kDirect},
    {Collective::kReduceScatter, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kReduce, kOnce, kAllRanks, kAllSizes, AlgorithmFamily::kDirect},
    {Collective::kReduce, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kAllGather, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
    {Collective::kBroadcast, kAny, kAllRanks, 1 * kMiB, AlgorithmFamily::kDirect},
    {Collective::kBroadcast, kAny, kAllRanks, kAllSizes, AlgorithmFamily::kRing},
};

}  // namespace

std::span<const KernelChoice> kernel_choices() { return kKernelChoices; }

AlgorithmFamily family_by_kernel(Collective collective, std::size_t count, DType dtype,
                                 int world_size) {
  const std::size_t nbytes = count * element_size(dtype);
  const bool rounds =
      is_reduction(collective) && is_floating_point(dtype) && element_size(dtype) < 4;
  const auto found = std::ranges::find_if(kKernelChoices, [&](const KernelChoice& choice) {
    return choice.collective == collective && (choice.sums == kAny || rounds) &&
           world_size <= choice.most_ranks && nbytes <= choice.most_nbytes;
  });
  return found == std::end(kKernelChoices) ? AlgorithmFamily::kDirect : found->family;
}

// A direct plan takes 2 latencies and 2 groups of messages, and a ring takes 2 (n-1). A direct plan
// rounds 16- and 8-bit floats once; a ring exchanges only with two neighbours. If a step of the
// ring takes less time on the wire than its calls on the host, the calls decide. The root of a
// direct broadcast sends the buffer n-1 times. The root of a chain sends it once, but a chain needs
// slices that are worth their calls.
AlgorithmFamily family_by_messages(Collective collective, std::size_t count, DType dtype,
                                   int world_size) {
  const std::size_t nbytes = count * element_size(dtype);  // of the whole buffer
  const bool is_direct = collective == Collective::kBroadcast
                             ? nbytes < 2 * kMinSliceNbytes
                             : element_size(dtype) < 4 || nbytes < world_size * kMinSliceNbytes;
  return is_direct ? AlgorithmFamily::kDirect : AlgorithmFamily::kRing;
}

std::string describe(DeviceExecutor executor, bool auto_is_fused) {
  switch (executor) {
    case DeviceExecutor::kMessages:
      return "messages: every collective goes as messages";
    case DeviceExecutor::kFused:
      return "fused: a collective is one kernel where all ranks reach each other's memory, else "
             "messages";
    case DeviceExecutor::kAuto:
      break;
  }
  if (auto_is_fused) {
    return "auto: what is eager is one kernel, between GPUs with NVLink; the rest goes as "
           "messages. RINGCOMM_EXECUTOR=fused asks for kernels for all, messages for none";
  }
  return "auto: every collective goes as messages. Between GPUs with NVLink it would take kernels "
         "for what is eager, and will once they have run on several GPUs; RINGCOMM_EXECUTOR=fused "
         "asks for them, and for kernels for the rest";
}

AlgorithmFamily DeviceCollectives::family_of(Collective collective, std::size_t count,
                                             DType dtype) const {
  const auto family = goes_by_kernels() ? family_by_kernel : family_by_messages;
  return family(collective, count, dtype, world_size());
}

void DeviceCollectives::carry_out(Call call, const Reduction& reduction, Timeout timeout) {
  const Prepared& found = prepared(call);
  std::exception_ptr refusal = found.error;
  if (!refusal && call.collective == Collective::kAllToAll && found.program.scratch_per_slice > 0) {
    refusal = make_error(
        ErrorKind::kInvalidArgument,
        "all_to_all on a device: in this plan ranks pass on chunks of others, whose counts they do "
        "not know there. The algorithm \"direct\" sends each to its rank.");
  }
  if (refusal) {
    call.plan = Prepared::kNoProgram;
    announce_refused(call, timeout);
    std::rethrow_exception(refusal);
  }
  call.plan = found.fingerprint;
  enqueue_program(call, found.program, chunks(call, found.program.num_chunks), reduction, timeout);
}

}  // namespace ringcomm::streams
