// Copies on the host that other cores will read.
#pragma once

#include <cstddef>

#include "reduce/store_choice.h"

namespace ringcomm {

// Copies nbytes as memcpy does, with the stores that have been found faster for these readers. A
// release store afterwards publishes them, whichever they were.
void publish(void* to, const void* from, std::size_t nbytes, StoreChoice& stores);

// The same for everything that the readers are about to be notified of. Little data leaves this
// core's caches as it is written, if the processor can do that (x86's CLDEMOTE): a reader waits for
// a line in the cache that the cores share for less than half as long as for one in another core's
// first cache.
void publish_message(void* to, const void* from, std::size_t nbytes, StoreChoice& stores);

// The second way, for which publish() may decide. As memcpy where the processor has no such stores.
void stream(void* to, const void* from, std::size_t nbytes);

}  // namespace ringcomm
