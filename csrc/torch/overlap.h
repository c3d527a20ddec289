// Tensors that share memory. An input that lies where outputs do is read from a copy, so that a
// collective gives what it would if it lay elsewhere; outputs that share elements are an error.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace ringcomm {

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
