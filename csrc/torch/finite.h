// Whether a rank's values are numbers: of groups that look for NaN and infinity before they spread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

namespace ringcomm {

// Throws ValueError if one of the tensors has NaN or infinity, and says where the first one is.
// Only tensors of floats on the CPU are looked at. `what` is the operation, for the message, and
// `sequence` its number, or 0 if it has none.
void check_finite(std::span<const at::Tensor> tensors, const char* what, std::uint64_t sequence);

}  // namespace ringcomm
