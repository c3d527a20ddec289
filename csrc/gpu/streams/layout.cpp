#include "gpu/streams/layout.h"

#include <algorithm>
#include <string>

#include "core/status.h"

namespace ringcomm::streams {
namespace {

// A relay passes data through the whole group. Its slices are small, so that the last rank waits
// for few bytes.
constexpr std::size_t kRelaySlices = 16;

}  // namespace

Layout Layout::with(int num_channels, std::size_t slice_nbytes) {
  Layout layout;
  layout.num_channels = num_channels;
  layout.slice_nbytes = slice_nbytes;
  layout.min_slice_nbytes = std::min(layout.min_slice_nbytes, slice_nbytes);
  return layout;
}

Pieces::Pieces(const Layout& layout, const Program& program, std::span<const Chunk> chunks,
               std::size_t element_nbytes, bool scales)
    : chunks_(chunks),
      element_nbytes_(element_nbytes),
      unit_(kAlignment / element_nbytes),
      most_channels_(program.num_steps == 0 ? 1 : layout.num_channels),
      min_part_count_(layout.min_slice_nbytes / element_nbytes) {
  std::size_t largest_count = 0;
  for (const Chunk& chunk : chunks) largest_count = std::max(largest_count, chunk.count);
  largest_part_count_ = part_of(largest_count, 0).count;
  num_slots = program.scratch_per_slice + (scales ? program.max_sent : 0);
  pipeline = Pipeline::of(program, cut_into_slices(layout, program), layout.slices_in_flight);
}

// Makes as few slices as fit into their slots, but as many as a window holds if they are large
// enough: one group of messages brings max_added of them. Returns their number.
int Pieces::cut_into_slices(const Layout& layout, const Program& program) {
  if (largest_part_count_ == 0) return 0;
  slice_count_ = largest_part_count_;
  if (program.num_sliced_steps == 0) return 1;

  const std::size_t slots = std::max(num_slots, 1);
  const std::size_t scratch =
      layout.slice_scratch_nbytes(static_cast<int>(program.num_actions.size()));
  const std::size_t most = scratch / slots / kAlignment * kAlignment;
  if (most < 2 * kAlignment) {
    throw Error(ErrorKind::kInvalidArgument,
                "the plan needs " + std::to_string(slots) +
                    " pieces of scratch for each slice, and " + std::to_string(scratch) +
                    " bytes have room for " + std::to_string(scratch / (2 * kAlignment)) +
                    ". slice_nbytes=" + std::to_string(slots * 2 * kAlignment) +
                    " would do, or fewer chunks at once.");
  }
  const std::size_t room =
      std::min(round_up(divide_up(layout.slice_nbytes, slots), kAlignment), most - kAlignment);
  slot_nbytes = room + kAlignment;
  const std::size_t arriving = std::max(program.max_added, 1);
  const std::size_t least = std::max(layout.min_slice_nbytes / arriving, kAlignment);
  const std::size_t part_nbytes = largest_part_count_ * element_nbytes_;
  const std::size_t wanted = program.is_relay ? kRelaySlices : layout.slices_in_flight - 1;
  const std::size_t num_slices = std::max(
      {std::min(wanted, part_nbytes / least), divide_up(part_nbytes, room), std::size_t{1}});
  slice_count_ = round_up(divide_up(largest_part_count_, num_slices), unit_);
  return static_cast<int>(divide_up(largest_part_count_, slice_count_));
}

// All chunks are looked at: a smaller chunk may be spread over more channels, because parts are
// whole multiples of kAlignment.
int Pieces::num_channels() const {
  int channels = 0;
  for (const Chunk& chunk : chunks_) {
    while (channels < most_channels_ && part_of(chunk.count, channels).count > 0) ++channels;
  }
  return channels;
}

Range Pieces::slice(int chunk, int channel, int slice) const {
  const Range whole = part(chunk, channel);
  const std::size_t first = std::min(whole.count, slice * slice_count_);
  return {whole.first + first, std::min(slice_count_, whole.count - first)};
}

Range Pieces::part_of(std::size_t count, int channel) const {
  const std::size_t fair = divide_up(count, most_channels_);
  const std::size_t each = round_up(std::max(fair, min_part_count_), unit_);
  const std::size_t first = std::min(count, channel * each);
  return {first, std::min(each, count - first)};
}

}  // namespace ringcomm::streams
