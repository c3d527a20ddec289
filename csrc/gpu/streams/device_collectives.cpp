#include "gpu/streams/device_collectives.h"

#include <algorithm>
#include <exception>
#include <string>

#include "core/status.h"
#include "gpu/streams/cost.h"
#include "plan/collective.h"
#include "reduce/device_arguments.h"

namespace ringcomm::streams {

static_assert(kLeastMessageSlice == kMinSliceNbytes, "it follows from the costs in cost.h");

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

namespace {

// Why a device cannot carry out the program; empty: it can.
std::string why_refused(const Call& call, const Program& program, int world_size) {
  if (call.collective == Collective::kAllToAll && program.scratch_per_slice > 0) {
    return "in this plan ranks pass on chunks of others, whose counts they do not know there. The "
           "algorithm \"direct\" sends each to its rank.";
  }
  if (!call.reduces || world_size <= kMaxDeviceInputs) return "";
  std::size_t most = 0;
  for (const Action& action : program.actions) most = std::max(most, action.from.size() + 1);
  if (most <= kMaxDeviceInputs) return "";
  return "this plan adds " + std::to_string(most) +
         " inputs in one step, and a kernel adds at most " + std::to_string(kMaxDeviceInputs) +
         " at once. Rings and hierarchical plans add fewer.";
}

}  // namespace

void DeviceCollectives::carry_out(Call call, const Reduction& reduction, Timeout timeout) {
  const Prepared& found = prepared(call);
  std::exception_ptr refusal = found.error;
  if (const std::string why = refusal ? "" : why_refused(call, found.program, world_size());
      !why.empty()) {
    refusal = make_error(ErrorKind::kInvalidArgument,
                         std::string(to_string(call.collective)) + " on a device: " + why);
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
