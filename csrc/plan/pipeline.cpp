#include "plan/pipeline.h"

#include <algorithm>
#include <vector>

namespace ringcomm {

Pipeline Pipeline::of(const Program& program, int num_slices, int slices_in_flight) {
  const int slices = std::max(num_slices, 1);
  const int room = slices_in_flight - 1;
  Pipeline pipeline{program.num_steps, program.num_sliced_steps, num_slices, slices, 1};
  if (!program.in_lockstep) {
    pipeline.window = 1;
  } else if (program.is_relay) {
    pipeline.delay = program.max_added > 0 ? std::min(2, room) : 1;
  } else {
    pipeline.delay = pipeline.window = std::min(slices, room);
  }
  return pipeline;
}

Plan pipelined(const Plan& plan, const Pipeline& pipeline) {
  Plan result{plan.num_chunks * pipeline.num_slices, {}};
  for (int tick = 0; tick < pipeline.num_ticks(); ++tick) {
    Step& at_tick = result.steps.emplace_back();
    pipeline.at(tick, [&](int step, int first_slice, int num_slices) {
      if (step >= static_cast<int>(plan.steps.size())) return;
      const auto add = [&](const std::vector<Transfer>& transfers, std::vector<Transfer>& to) {
        for (const Transfer& transfer : transfers) {
          for (int c = transfer.first_chunk; c < transfer.first_chunk + transfer.num_chunks; ++c) {
            to.push_back({transfer.peer, c * pipeline.num_slices + first_slice, num_slices,
                          transfer.reduce});
          }
        }
      };
      add(plan.steps[step].sends, at_tick.sends);
      add(plan.steps[step].recvs, at_tick.recvs);
    });
  }
  return result;
}

}  // namespace ringcomm
