#include "streams/device_collectives.h"

#include <exception>

#include "core/status.h"
#include "streams/cost.h"

namespace ringcomm::streams {

// A direct plan takes 2 latencies and 2 groups of messages where a ring takes 2 (n-1), and rounds
// 16- and 8-bit floats once; a ring keeps to two neighbours. Where a step of the ring takes less
// time on the wire than its calls on the host, the calls decide. A direct broadcast's root sends
// the buffer n-1 times, where a chain's sends it once, but needs slices that are worth their calls.
Collectives::Way DeviceCollectives::way_of(Collective collective, std::size_t count,
                                           DType dtype) const {
  const std::size_t nbytes = count * element_size(dtype);  // of the whole buffer
  const bool is_direct = collective == Collective::kBroadcast
                             ? nbytes < 2 * kMinSliceNbytes
                             : element_size(dtype) < 4 || nbytes < world_size() * kMinSliceNbytes;
  return is_direct ? Way::kDirect : Way::kByNeighbours;
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
