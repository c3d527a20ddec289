// Counts the calls of a collective without a device: the executor runs, and its calls do nothing
// but count.
#pragma once

#include <cstddef>
#include <string>

#include "gpu/streams/cost.h"
#include "gpu/streams/layout.h"
#include "plan/collective.h"
#include "reduce/types.h"

namespace ringcomm::streams {

// A collective on one rank. The count is that of the largest buffer of a rank: what reduce-scatter
// and scatter begin with, what all-gather and gather end with, what one rank has for all others in
// an all-to-all. It must be a multiple of world_size where ranks have shares of it.
struct Workload {
  Collective collective;
  std::string algorithm = "auto";
  int world_size;
  int rank = 0;
  int root = 0;
  std::size_t count;  // elements
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

// All-reduce, reduce and broadcast are in place, the others go from one buffer to another. Throws
// Error if the collective itself would.
Calls count_calls(const Workload& workload, const Layout& layout);

}  // namespace ringcomm::streams
