// The collectives on a device: which plans they go by there.
#pragma once

#include <cstddef>
#include <span>

#include "core/collectives.h"

namespace ringcomm::streams {

// On device memory and asynchronous: what the methods do is enqueued, and the memory must stay
// until it is done.
class DeviceCollectives : public ringcomm::Collectives {
 protected:
  using Collectives::Collectives;

 private:
  // Enqueues the program on the chunks. `call` has no sequence number yet.
  virtual void enqueue_program(Call call, const Program& program, std::span<const Chunk> chunks,
                               const Reduction& reduction, Timeout timeout) = 0;
  // The call's plan is refused: nothing is enqueued, and the other ranks, if there are any, are
  // to know.
  virtual void announce_refused(Call /*call*/, Timeout /*timeout*/) {}
  // Whether a call that is not eager goes by one kernel, and not as messages; the same on all
  // ranks.
  virtual bool goes_by_kernels() const { return false; }

  AlgorithmFamily family_of(Collective collective, std::size_t count, DType dtype) const override;
  void carry_out(Call call, const Reduction& reduction, Timeout timeout) override;
};

}  // namespace ringcomm::streams
