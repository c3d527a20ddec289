// Reductions on device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "reduce/types.h"

namespace ringcomm {

// reduce_host on the device: the same reduction, evaluated in the same order and type, enqueued on
// `stream` of the current device. Results have reduce_host's bits, but for the sign and payload of
// a NaN. 1 to 64 inputs, 1 or 2 outputs, pointers of any alignment (equal misalignment modulo 16
// bytes is fast). Returns what the launch returned, or cudaErrorInvalidValue for a number of inputs
// or outputs out of range and cudaErrorNotSupported where supports() is false.
cudaError_t reduce_device(const Reduction& reduction, const void* const* inputs, int num_inputs,
                          void* const* outputs, int num_outputs, std::size_t count,
                          cudaStream_t stream);

}  // namespace ringcomm
