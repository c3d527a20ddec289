// One channel's share of the device, which an executor of streams works with.
#pragma once

#include <cstddef>
#include <vector>

#include "streams/api.h"

namespace ringcomm::streams {

template <StreamApi Api>
struct Channel {
  typename Api::Comm comm;
  // Channel 0's communication stream is the one that calls begin and end on.
  typename Api::Stream communication, reduction;
  std::byte* scratch;  // Layout::channel_scratch_nbytes() of them, aligned to kAlignment
  typename Api::Event communicated;
  std::vector<typename Api::Event> reduced;  // Layout::slices_in_flight of them
};

}  // namespace ringcomm::streams
