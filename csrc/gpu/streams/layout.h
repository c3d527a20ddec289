// How an executor divides its work: the layout of a group, and how the chunks of one collective are
// cut by it, into a part for each channel and slices of the parts.
#pragma once

#include <cstddef>
#include <span>

#include "core/chunks.h"
#include "gpu/streams/cost.h"
#include "plan/pipeline.h"
#include "plan/program.h"

namespace ringcomm::streams {

inline constexpr std::size_t kAlignment = 256;  // bytes, of slices and scratch

// The layout is the same on all ranks. The initial values are the defaults; they were chosen by the
// costs of cost.h, not measured. Two slices at a time are enough for one to travel while the other
// is added, because adding takes less time than travelling. A second channel doubles the calls for
// what one channel can carry.
struct Layout {
  int num_channels = 1;
  int slices_in_flight = 3;             // per channel, at least 2: those of a window, one arriving
  std::size_t slice_nbytes = 16 << 20;  // the most that one channel receives to be added at once
  std::size_t min_slice_nbytes = kMinSliceNbytes;  // smaller slices are not worth their calls

  // The default, except for the two values that users may set.
  static Layout with(int num_channels, std::size_t slice_nbytes);

  // Scratch of one channel, enough for every collective. The table's plans have fewer than
  // 2 * world_size pieces in a slice. Each piece takes its share of the slice, rounded up to
  // kAlignment, and kAlignment more so that it can begin late. Users' plans may have more and
  // smaller pieces.
  std::size_t channel_scratch_nbytes(int world_size) const {
    return slices_in_flight * slice_scratch_nbytes(world_size);
  }
  std::size_t slice_scratch_nbytes(int world_size) const {
    return slice_nbytes + 2 * world_size * 2 * kAlignment;
  }
};

// Elements of a chunk.
struct Range {
  std::size_t first, count;
};

// How the chunks of one collective are cut.
//
// Both ends of every transfer must compute the same pieces. So a channel's part depends only on its
// chunk's count. The size of slices depends on the largest chunk, so chunks are cut into slices
// only if all ranks know all counts: for what is added, and for chains. Data that is only moved is
// one piece, which NCCL cuts itself.
class Pieces {
 public:
  // scales: a rank multiplies its input, into scratch, before it sends it.
  Pieces(const Layout& layout, const Program& program, std::span<const Chunk> chunks,
         std::size_t element_nbytes, bool scales);

  Pipeline pipeline;

  // Scratch has slots for each slice in flight, one behind the other. A slot has room for a piece
  // that begins as far from a multiple of kAlignment as its chunk does in the caller's memory.
  int num_slots = 0;
  std::size_t slot_nbytes = 0;

  // The number of channels that carry anything. They are the first ones.
  int num_channels() const;
  Range part(int chunk, int channel) const { return part_of(chunks_[chunk].count, channel); }
  Range slice(int chunk, int channel, int slice) const;

 private:
  Range part_of(std::size_t count, int channel) const;
  int cut_into_slices(const Layout& layout, const Program& program);

  const std::span<const Chunk> chunks_;
  const std::size_t element_nbytes_;
  const std::size_t unit_;  // elements in kAlignment bytes
  const int most_channels_;
  const std::size_t min_part_count_;
  std::size_t largest_part_count_ = 0;
  std::size_t slice_count_ = 0;  // elements
};

}  // namespace ringcomm::streams
