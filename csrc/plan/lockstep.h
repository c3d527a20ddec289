// Steps that mean the same on all ranks.
//
// A plan numbers its own steps. In a chain, rank 3 receives in its step 0 what rank 2 sends in its
// step 1. Sometimes the steps of all ranks can be given new numbers, in their order, so that both
// ends of every message have the same number. Then all ranks go through one common sequence of
// steps, and an executor may overlap several of them: its peers act in the same order of steps.
//
// They can be if no rank would have to do one step before itself: the steps that messages tie
// together are one common step, each rank's next step comes after its last, and there must be no
// circle. Each common step then has the least number that allows this.
#pragma once

#include <vector>

#include "plan/wiring.h"

namespace ringcomm {

// num_steps[r]: of rank r. steps[r][s]: the number of its step s among the common ones. Empty if
// there are none such.
std::vector<std::vector<int>> common_steps(const std::vector<int>& num_steps, const Wiring& wiring);

}  // namespace ringcomm
