// How the chunks of one collective are cut: a part for each channel, and slices of the parts.
#pragma once

#include <cstddef>
#include <span>

#include "core/chunks.h"
#include "plan/pipeline.h"
#include "plan/program.h"
#include "streams/layout.h"

namespace ringcomm::streams {

// Elements of a chunk.
struct Range {
  std::size_t first, count;
};

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
