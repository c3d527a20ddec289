#include "plan/pipeline.h"

#include <algorithm>
#include <vector>

namespace ringcomm {

Pipeline Pipeline::of(int num_chunks, int num_steps, int num_slices, int slices_in_flight) {
  const int slices = std::max(num_slices, 1);
  const int room = slices_in_flight - 1;
  if (num_chunks == 1) return {num_steps, num_slices, slices, std::min(2, room)};
  const int window = std::min(slices, room);
  return {num_steps, num_slices, window, window};
}

Plan pipelined(const Plan& plan, const Pipeline& pipeline) {
  Plan result{plan.num_chunks * pipeline.num_slices, {}};
  for (int tick = 0; tick < pipeline.num_ticks(); ++tick) {
    Step& at_tick = result.steps.emplace_back();
    const auto add = [&](const std::vector<Transfer>& transfers, int slice,
                         std::vector<Transfer>& to) {
      for (const Transfer& transfer : transfers) {
        for (int c = transfer.first_chunk; c < transfer.first_chunk + transfer.num_chunks; ++c) {
          to.push_back({transfer.peer, c * pipeline.num_slices + slice, 1, transfer.reduce});
        }
      }
    };
    pipeline.at(tick, [&](int step, int slice) {
      if (step >= static_cast<int>(plan.steps.size())) return;
      add(plan.steps[step].sends, slice, at_tick.sends);
      add(plan.steps[step].recvs, slice, at_tick.recvs);
    });
  }
  return result;
}

}  // namespace ringcomm
