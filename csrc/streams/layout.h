// How an executor divides its work.
#pragma once

#include <cstddef>

#include "streams/cost.h"

namespace ringcomm::streams {

inline constexpr std::size_t kAlignment = 256;  // bytes, of slices and scratch

// The same on all ranks. What it holds at first is the default, chosen by the costs of cost.h, not
// measured. Two slices at a time are enough for one to travel while the other is added, as adding
// takes less time than travelling. A second channel doubles the calls of what one can carry.
struct Layout {
  int num_channels = 1;
  int slices_in_flight = 3;             // per channel, at least 2: those of a window, one arriving
  std::size_t slice_nbytes = 16 << 20;  // the most that one channel receives to be added at once
  std::size_t min_slice_nbytes = kMinSliceNbytes;  // smaller ones are not worth their calls

  // The default but for what users may set.
  static Layout with(int num_channels, std::size_t slice_nbytes);

  // Scratch of one channel, whatever a collective does. The table's plans have fewer than
  // 2 * world_size pieces in a slice; each is its share of it, rounded up to kAlignment, and as
  // much room to begin late. Users' plans may have more, and smaller ones.
  std::size_t channel_scratch_nbytes(int world_size) const {
    return slices_in_flight * slice_scratch_nbytes(world_size);
  }
  std::size_t slice_scratch_nbytes(int world_size) const {
    return slice_nbytes + 2 * world_size * 2 * kAlignment;
  }
};

}  // namespace ringcomm::streams
