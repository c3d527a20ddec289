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

// Elements of a chunk.
struct Range {
  std::size_t first, count;
};

// How the chunks of one collective are cut.
//
// Both ends of every transfer must arrive at the same pieces. So a channel's part follows from its
// chunk's count alone; and slices, whose size follows from the largest chunk, are made only where
// all ranks know all counts: of what is added, and of chains. What only moves goes in one piece,
// which NCCL cuts itself.
class Pieces {
 public:
  // scales: a rank's input is multiplied, into scratch, before it is sent.
  Pieces(const Layout& layout, const Program& program, std::span<const Chunk> chunks,
         std::size_t element_nbytes, bool scales);

  Pipeline pipeline;

  // Scratch: slots for each slice in flight, one behind the other. A slot has room for a piece that
  // begins as far from a multiple of kAlignment as its chunk does in the caller's memory.
  int num_slots = 0;
  std::size_t slot_nbytes = 0;

  // The channels from 0 on that have anything to carry.
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
