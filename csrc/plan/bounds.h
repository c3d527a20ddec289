// How much the plans of a group may hold, so that looking at them takes seconds, and memory that
// machines have.
//
// All that looks at the plans of a group (verify, compile, bitwise_difference) takes time and
// memory for three numbers, whatever the plans do:
//
//     messages   a chunk of a send or of a receive; none at all counts as one
//     steps      of all ranks, empty ones too
//     values     pairs of a rank and a chunk that is promised to it
//
// compile (plan/program.h) needs the most, up to 400 bytes and a microsecond for each: an
// action with its two ends, its place in the wiring, and what sorting copies. With at most 2^21 of
// each this comes to 1 GB and to two seconds, and a group waits for minutes before it gives up.
// A ring or a direct exchange of up to 1024 ranks fits. All is counted before anything of that
// length is allocated.
//
// The library's own algorithms are compiled for groups of any size: what they hold is known.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

inline constexpr std::int64_t kMostMessages = std::int64_t{1} << 21;
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 21;
inline constexpr std::int64_t kMostValues = std::int64_t{1} << 21;

// Throws PlanError if the plans of all ranks hold more than plans may, and what check_plan
// (plan/matching.h) throws. The contract is for as many ranks, and as many chunks as rank 0's plan
// has.
void check_bounds(const Contract& contract, const std::vector<Plan>& plans);

}  // namespace ringcomm
