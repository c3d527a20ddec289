// Sum of sparse COO tensors: every rank gathers all indices and values and adds them up.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "core/collectives.h"

namespace ringcomm {

// The collectives of which one sparse all-reduce is made.
inline constexpr int kSparseCalls = 3;

// Throws ValueError unless `tensor` is a sparse CPU tensor and the op is SUM.
void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op);

// In place. All ranks must give tensors of the same shape, dtype and number of sparse dimensions.
void all_reduce_sparse(Collectives& collectives, at::Tensor tensor,
                       std::chrono::milliseconds timeout);

}  // namespace ringcomm
