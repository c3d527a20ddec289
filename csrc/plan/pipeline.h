// The order in which an executor that cuts chunks into slices carries out a plan.
//
// The unit of work is (step s, slice k): all transfers of step s, of slice k of their chunks. What
// is received in (s, k) is added up while other slices travel, and sent on in (s+1, k). So that it
// is ready by then, the slices go through the steps in windows of a few, and through each window
// step by step. Once nothing is added any more there is nothing to overlap, and every further step
// is one tick for all slices of its chunks together. With room for 3 slices, of which one is
// arriving, a window is 2. A ring all-reduce of 3 ranks, 2 steps that add and 2 that copy, in 4
// slices:
//
//      tick        0      1      2      3   |  4      5      6      7   |  8      9
//      (s, k)     0,0    0,1    1,0    1,1  | 0,2    0,3    1,2    1,3  | 2,*    3,*
//
// In a relay, such as a chain, a rank has nothing to send before it has received. Step by step, it
// would receive a window, then send it, and only half of its links would be busy. There all slices
// are one window, and step s+1 begins two ticks behind step s, one to receive and one to add, or
// one tick where nothing is added. Rank 1 of a chain:
//
//      tick        0      1      2      3      4     ...
//      (s, k)     0,0    0,1    0,2    0,3    0,4
//                               1,0    1,1    1,2
//
// Plans without common steps (plan/wiring.h) go with one slice at a time through all of their
// steps: that is the plan as it was proven, carried out again and again.
//
// Invariant: a slice goes through the steps in order, at least `delay` ticks apart while the steps
// are sliced, and steps begin on all ranks in the same order. tests/cpp/test_pipeline.cpp says the
// same as a plan, a tick being a step and a slice a chunk, so that verify() proves it.
#pragma once

#include <algorithm>

#include "plan/program.h"

namespace ringcomm {

struct Pipeline {
  int num_steps;
  int num_sliced_steps;  // the first of them
  int num_slices;        // of every chunk; some of a smaller chunk's are empty
  int window;            // slices
  int delay;             // ticks from (s, k) to (s+1, k)

  // For executors with room for `slices_in_flight` slices, at least 2.
  static Pipeline of(const Program& program, int num_slices, int slices_in_flight) {
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

  int num_ticks() const { return sliced_ticks() + (num_slices == 0 ? 0 : num_whole_steps()); }

  // visit(step, first_slice, num_slices) for what happens at this tick, in the order of the steps.
  // num_slices is 1, or, in a step that is not sliced, all.
  template <typename Visit>
  void at(int tick, Visit&& visit) const {
    if (tick >= sliced_ticks()) {
      visit(num_sliced_steps + tick - sliced_ticks(), 0, num_slices);
      return;
    }
    const int first_slice = tick / ticks_per_window() * window;
    const int within = tick % ticks_per_window();
    for (int step = 0; step < num_sliced_steps; ++step) {
      const int slice = within - step * delay;
      if (slice < 0 || slice >= window || first_slice + slice >= num_slices) continue;
      visit(step, first_slice + slice, 1);
    }
  }

 private:
  int num_whole_steps() const { return num_steps - num_sliced_steps; }
  int num_windows() const { return (num_slices + window - 1) / window; }
  int ticks_per_window() const {
    return num_sliced_steps == 0 ? 0 : (num_sliced_steps - 1) * delay + window;
  }
  int sliced_ticks() const { return num_windows() * ticks_per_window(); }
};

}  // namespace ringcomm
