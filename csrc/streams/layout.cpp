#include "streams/layout.h"

#include <algorithm>

namespace ringcomm::streams {

Layout Layout::with(int num_channels, std::size_t slice_nbytes) {
  Layout layout;
  layout.num_channels = num_channels;
  layout.slice_nbytes = slice_nbytes;
  layout.min_slice_nbytes = std::min(layout.min_slice_nbytes, slice_nbytes);
  return layout;
}

}  // namespace ringcomm::streams
