// Copies on the host that other cores will read.
#pragma once

#include <cstddef>

namespace ringcomm {

// Copies nbytes as memcpy does, with the stores that this thread has found faster (store_choice.h).
// A release store afterwards publishes them, whichever they were.
void publish(void* to, const void* from, std::size_t nbytes);

// The second way, for which publish() may decide. As memcpy where the processor has no such stores.
void stream(void* to, const void* from, std::size_t nbytes);

}  // namespace ringcomm
