// Gather and scatter: every chunk has one owner and one destination, and goes from the one to the
// other directly, all in one step.
//
//      gather:   chunk j goes from rank j to the root
//      scatter:  chunk j goes from the root to rank j
//
// Cost: each chunk crosses one link once, so the volume is the least possible: (n-1)/n * nbytes in
// or out of the root, where nbytes is the whole buffer, in one latency.
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// A world_size of 1 needs no steps. Throw std::invalid_argument for a rank or root outside of
// 0 ... world_size-1.

// world_size chunks. Before: chunk r on rank r. After: all chunks on the root.
Plan gather(int rank, int world_size, int root);

// world_size chunks. Before: all chunks on the root. After: chunk r on rank r.
Plan scatter(int rank, int world_size, int root);

}  // namespace ringcomm
