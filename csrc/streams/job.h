// One collective as the executor sees it: what each channel carries, in which slices, when.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "chunks.h"
#include "plan/pipeline.h"
#include "plan/program.h"
#include "reduce/host.h"

namespace ringcomm::streams {

inline constexpr std::size_t kAlignment = 256;  // bytes, of slices and scratch

// How an executor divides its work; the same on all ranks.
struct Layout {
  int num_channels;
  int slices_in_flight;          // per channel, at least 2
  std::size_t slice_nbytes;      // the most
  std::size_t min_slice_nbytes;  // smaller ones are not worth their messages

  // Scratch of one channel, whatever a collective does.
  std::size_t channel_scratch_nbytes() const { return slices_in_flight * slice_nbytes; }
};

// Elements of a chunk.
struct Range {
  std::size_t first, count;
};

// Both ends of every transfer must arrive at the same pieces. So a channel's part follows from its
// chunk's count alone; and slices, whose size follows from the largest chunk, are made only where
// all ranks know all counts: of what is added, and of chains. What only moves goes in one piece,
// which NCCL cuts itself.
class Job {
 public:
  Job(const Layout& layout, const Program& program, std::span<const Chunk> chunks,
      const Reduction& reduction);

  const Program& program;
  const std::span<const Chunk> chunks;
  const Reduction& reduction;
  const std::size_t element_nbytes;
  const bool scales;  // premul_sum: an input is multiplied before it is sent

  Pipeline pipeline;
  // By step: the actions that send, and those that receive.
  std::vector<std::vector<const Action*>> sends, recvs;

  int num_slots = 0;  // of scratch, for each slice in flight
  std::size_t slot_nbytes = 0;

  // The channels from 0 on that have anything to carry.
  int num_channels() const;
  Range part(int chunk, int channel) const { return part_of(chunks[chunk].count, channel); }
  Range piece(int chunk, int channel, int slice) const;

 private:
  Range part_of(std::size_t count, int channel) const;
  void cut_into_slices(const Layout& layout);

  const int most_channels_;
  const std::size_t min_part_count_;
  std::size_t largest_count_ = 0;  // of a chunk
  std::size_t slice_count_ = 0;    // elements
};

}  // namespace ringcomm::streams
