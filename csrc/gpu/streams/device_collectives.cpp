#include "gpu/streams/device_collectives.h"

#include <exception>
#include <string>

#include "core/status.h"
#include "gpu/streams/cost.h"
#include "plan/collective.h"

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
