// Tensors as the core wants them: contiguous elements of a known dtype, which lie apart from each
// other.
//
// An input that lies where outputs do is read from a copy, so that a collective gives what it would
// if it lay elsewhere; outputs that share elements are an error.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "reduce/types.h"

namespace ringcomm {

// Throws ValueError (layout, storage) or NotImplementedError (device, quantized, wrapped) unless it
// is a dense tensor whose elements are its memory, on the CPU or, if this build can send those, on
// a CUDA device. `what` is the collective, for the message.
void check_tensor(const at::Tensor& tensor, const char* what);

// As check_tensor, for a tensor that is written: a ValueError also if elements share memory.
void check_output(const at::Tensor& tensor, const char* what);

// Whether a call of torch's on this tensor comes to its memory without a detour: neither the tensor
// nor the thread asks for anything else first, such as a functorch layer, tracing, or batching.
bool is_plain(const at::Tensor& tensor);

// Whether its elements lie in logical order, as they are.
bool lies_flat(const at::Tensor& tensor);

// A tensor that is read: its elements in logical order, copied if they do not lie that way.
at::Tensor readable(const at::Tensor& tensor);

// A tensor that is written: `flat` has the elements in logical order and is the tensor itself where
// possible; commit() puts them into the tensor if it is not.
class Writable {
 public:
  explicit Writable(const at::Tensor& tensor, bool needs_contents);

  const at::Tensor& tensor() const { return tensor_; }
  const at::Tensor& flat() const { return flat_; }
  void commit() const;

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
};

// How to move elements of a dtype: as themselves, or as bytes if only torch knows the dtype.
struct Elements : ElementType {
  using ElementType::ElementType;

  // Elements of the core.
  std::size_t count(const at::Tensor& tensor) const {
    return tensor.numel() * static_cast<std::size_t>(users.per_element);
  }
};
Elements elements_to_move(at::ScalarType type);

// How to reduce them: complex numbers are pairs. Throws ValueError where the op is not defined.
Elements elements_to_reduce(at::ScalarType type, const c10d::ReduceOp& op, const char* what);

Reduce make_reduce(const Elements& elements, const c10d::ReduceOp& op, const char* what);

// The sum of CPU tensors as one step of a plan adds those of ranks. They are contiguous, and of one
// shape and dtype.
at::Tensor add_in_pairs(const std::vector<at::Tensor>& tensors);

// The hash (core/xxh64.h) of their elements in logical order, one tensor after the other. A sparse
// tensor counts as its indices, then its values.
std::uint64_t digest_of(std::span<const at::Tensor> tensors);

// Whether elements of one tensor, or of several, lie in the same memory.
bool shares_elements(const std::vector<at::Tensor>& tensors);

// Throws ValueError where outputs share elements. `what` is the collective, for the message.
void check_apart(const std::vector<at::Tensor>& outputs, const char* what);

// Whether the memory from the first to the last element of one reaches into that of the other.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// The inputs of calls that are carried out one after the other, those copied that another call's
// outputs lie in. outputs[i] are those of the call that reads inputs[i].
std::vector<at::Tensor> apart_from_others(const std::vector<at::Tensor>& inputs,
                                          const std::vector<std::vector<at::Tensor>>& outputs);

}  // namespace ringcomm
