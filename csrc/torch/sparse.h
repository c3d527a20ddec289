// Sum of sparse COO tensors: every rank gathers all indices and values and adds them up.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "core/status.h"
#include "reduce/float_mode.h"
#include "torch/tensors.h"

namespace ringcomm {

// The collectives of which one sparse all-reduce is made.
inline constexpr int kSparseCalls = 3;

// What the ranks exchange first: the number of nonzeros, then what must agree.
inline std::vector<int64_t> shape_record(const at::Tensor& tensor, bool is_reproducible) {
  std::vector<int64_t> record{tensor._nnz(), tensor.sparse_dim(),
                              static_cast<int64_t>(tensor.scalar_type()), is_reproducible ? 1 : 0};
  for (const int64_t size : tensor.sizes()) record.push_back(size);
  return record;
}

// all_gather of tensors that differ in dimension `along`, by counts[r] on rank r.
inline std::vector<at::Tensor> gather(Collectives& collectives, const at::Tensor& own,
                                      const std::vector<int64_t>& counts, int64_t along,
                                      std::chrono::milliseconds timeout) {
  const Elements elements = elements_to_move(own.scalar_type());
  std::vector<at::Tensor> parts;
  std::vector<Output> outputs;
  for (const int64_t count : counts) {
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[along] = count;
    parts.push_back(at::empty(sizes, own.options()));
    outputs.push_back({parts.back().data_ptr(), elements.count(parts.back())});
  }
  const at::Tensor flat = readable(own);
  collectives.all_gather(flat.const_data_ptr(), outputs, elements, timeout);
  return parts;
}

// The elements of all parts, and the sums of those with the same index.
inline at::Tensor joined(const std::vector<at::Tensor>& indices,
                         const std::vector<at::Tensor>& values, c10::IntArrayRef sizes) {
  const at::Tensor all = at::cat(values, 0);
  return at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), all, sizes,
                                       all.options().layout(at::kSparse))
      .coalesce();
}

// Adds neighbours first, then neighbouring pairs, and so on (reduce/types.h), and rounds once. Not
// by at::add, which adds both to 0 and so makes 0 of -0.
inline at::Tensor sum_in_pairs(std::vector<at::Tensor> indices, std::vector<at::Tensor> values,
                               const at::Tensor& own) {
  const at::ScalarType dtype = own.scalar_type();
  const bool is_narrow = at::isFloatingType(dtype) && own.element_size() < 4;
  if (is_narrow) {
    for (at::Tensor& each : values) each = each.to(at::kFloat);
  }
  while (values.size() > 1) {
    std::vector<at::Tensor> next_indices, next_values;
    for (std::size_t r = 0; r + 1 < values.size(); r += 2) {
      const at::Tensor sum =
          joined({indices[r], indices[r + 1]}, {values[r], values[r + 1]}, own.sizes());
      next_indices.push_back(sum._indices());
      next_values.push_back(sum._values());
    }
    if (values.size() % 2 == 1) {
      next_indices.push_back(indices.back());
      next_values.push_back(values.back());
    }
    indices = std::move(next_indices);
    values = std::move(next_values);
  }
  return at::_sparse_coo_tensor_unsafe(indices[0], values[0].to(dtype), own.sizes(), own.options())
      ._coalesced_(true);
}

// Throws ValueError unless `tensor` is a sparse CPU tensor and the op is SUM.
inline void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  TORCH_CHECK_VALUE(tensor.is_sparse(), "ring: all_reduce: got a tensor of layout ",
                    tensor.layout(), "; wanted sparse COO");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu(), "ring: all_reduce: got a sparse tensor on ",
                              tensor.device(), "; sparse tensors are reduced on the CPU only");
  TORCH_CHECK_VALUE(op.op_ == c10d::ReduceOp::SUM,
                    "ring: all_reduce: sparse tensors can only be reduced with op=sum");
}

// In place. All ranks must give tensors of the same shape, dtype and number of sparse dimensions.
inline void all_reduce_sparse(Collectives& collectives, at::Tensor tensor,
                              std::chrono::milliseconds timeout) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor own = tensor.coalesce();
  const std::vector<int64_t> record = shape_record(own, collectives.is_reproducible());
  const std::size_t n = collectives.world_size();
  std::vector<std::vector<int64_t>> records(n, std::vector<int64_t>(record.size()));
  std::vector<Output> outputs;
  for (auto& r : records) outputs.push_back({r.data(), r.size()});
  collectives.all_gather(record.data(), outputs, DType::kInt64, timeout);

  std::vector<int64_t> nonzeros;
  for (std::size_t r = 0; r < n; ++r) {
    nonzeros.push_back(records[r][0]);
    if (!std::equal(record.begin() + 1, record.end(), records[r].begin() + 1)) {
      throw Error(ErrorKind::kMismatch,
                  "rank " + std::to_string(collectives.rank()) +
                      " of the group in a sparse all_reduce: rank " + std::to_string(r) +
                      "'s tensor has another shape, dtype or number of sparse dimensions, or its "
                      "group another `reproducible`");
    }
  }
  const std::vector<at::Tensor> indices = gather(collectives, own._indices(), nonzeros, 1, timeout);
  const std::vector<at::Tensor> values = gather(collectives, own._values(), nonzeros, 0, timeout);
  const DefaultFloatMode mode;  // torch adds them here, on each rank by itself
  tensor.copy_(collectives.is_reproducible() ? sum_in_pairs(indices, values, own)
                                             : joined(indices, values, own.sizes()));
}

}  // namespace ringcomm
