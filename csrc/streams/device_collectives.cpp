#include "streams/device_collectives.h"

#include <exception>

#include "core/status.h"
#include "streams/choice.h"

namespace ringcomm::streams {

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
