// Reductions on host memory: n inputs in one pass, one rounding per store.
#pragma once

#include <cstddef>
#include <span>

#include "reduce/reduction.h"

namespace ringcomm {

// Writes `count` results to the output and to every copy; without an output, which is null then, to
// the copies alone. The output is one of the inputs or overlaps none; copies overlap nothing.
// num_inputs >= 1: a single input is copied (and scaled, and divided, as `reduction` says). Throws
// std::invalid_argument if supports() is false, or without inputs, or with nowhere to write to.
// The bits of a result (but for a NaN's sign and payload) do not depend on the machine's
// instruction set, on alignment, or on how the data is cut into calls.
//
// What other cores read belongs into a copy. Copies are written by memcpy, for which processors
// take a cache line from those who have read it without fetching what stood there: that is two to
// four times as fast as to store a sum there, vector by vector.
void reduce_host(const Reduction& reduction, const void* const* inputs, int num_inputs,
                 void* output, std::span<void* const> copies, std::size_t count);

// Copies nbytes to each destination in one pass over the source.
void copy_host(const void* input, void* const* outputs, int num_outputs, std::size_t nbytes);

}  // namespace ringcomm
