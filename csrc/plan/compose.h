// Plans one after the other.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// The steps of `first`, then those of `second`. Throws std::invalid_argument where the two divide
// the buffer into different numbers of chunks.
Plan then(Plan first, Plan second);

}  // namespace ringcomm
