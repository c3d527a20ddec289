// Reductions on host memory: n inputs in one pass, one rounding per store.
#pragma once

#include <cstddef>

#include "reduce/reduction.h"

namespace ringcomm {

// Writes `count` results to every one of the `num_outputs` (1 or 2) outputs. num_inputs >= 1: a
// single input is copied (and scaled, and divided, as `reduction` says). Throws
// std::invalid_argument if supports() is false or a number of inputs or outputs is out of range.
// The bits of a result (but for a NaN's sign and payload) do not depend on the machine's
// instruction set, on alignment, or on how the data is cut into calls.
void reduce_host(const Reduction& reduction, const void* const* inputs, int num_inputs,
                 void* const* outputs, int num_outputs, std::size_t count);

// Copies nbytes to one or two destinations in one pass over the source.
void copy_host(const void* input, void* const* outputs, int num_outputs, std::size_t nbytes);

}  // namespace ringcomm
