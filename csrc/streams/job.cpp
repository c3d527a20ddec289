#include "streams/job.h"

#include <algorithm>

namespace ringcomm::streams {
namespace {

// A chain is as long as the group: its slices are small, so that the last rank waits for few bytes.
constexpr std::size_t kChainSlices = 16;

std::size_t round_up(std::size_t count, std::size_t unit) {
  return (count + unit - 1) / unit * unit;
}

}  // namespace

Job::Job(const Layout& layout, const Program& program, std::span<const Chunk> chunks,
         const Reduction& reduction)
    : program(program),
      chunks(chunks),
      reduction(reduction),
      element_nbytes(element_size(reduction.dtype)),
      scales(reduction.op == ReduceOp::kPremulSum),
      sends(program.num_steps),
      recvs(program.num_steps),
      most_channels_(layout.num_channels),
      min_part_count_(layout.min_slice_nbytes / element_nbytes) {
  for (const Action& action : program.actions) {
    if (!action.to.empty()) sends[action.send_step].push_back(&action);
    if (!action.from.empty()) recvs[action.recv_step].push_back(&action);
  }
  for (const Chunk& chunk : chunks) largest_count_ = std::max(largest_count_, chunk.count);
  cut_into_slices(layout);
}

void Job::cut_into_slices(const Layout& layout) {
  const std::size_t count = part_of(largest_count_, 0).count;
  const bool chain = program.num_chunks == 1 && program.num_steps > 1;
  num_slots = program.max_added + (scales ? program.max_sent : 0);
  slice_count_ = std::max<std::size_t>(count, 1);
  if (num_slots > 0 || chain) {
    slot_nbytes = layout.slice_nbytes / std::max(num_slots, 1) / kAlignment * kAlignment;
    const std::size_t most = slot_nbytes / element_nbytes;
    const std::size_t least = std::min(std::max<std::size_t>(min_part_count_, 1), most);
    const std::size_t wanted = count / (chain ? kChainSlices : layout.slices_in_flight - 1);
    slice_count_ = std::clamp(round_up(wanted, kAlignment / element_nbytes), least, most);
  }
  const int num_slices = static_cast<int>((count + slice_count_ - 1) / slice_count_);
  pipeline =
      Pipeline::of(program.num_chunks, program.num_steps, num_slices, layout.slices_in_flight);
}

// A smaller chunk may be spread over more channels, as parts are whole multiples of kAlignment.
int Job::num_channels() const {
  int channels = 0;
  for (const Chunk& chunk : chunks) {
    while (channels < most_channels_ && part_of(chunk.count, channels).count > 0) ++channels;
  }
  return channels;
}

Range Job::piece(int chunk, int channel, int slice) const {
  const Range whole = part(chunk, channel);
  const std::size_t first = std::min(whole.count, slice * slice_count_);
  return {whole.first + first, std::min(slice_count_, whole.count - first)};
}

Range Job::part_of(std::size_t count, int channel) const {
  const std::size_t fair = (count + most_channels_ - 1) / most_channels_;
  const std::size_t each = round_up(std::max(fair, min_part_count_), kAlignment / element_nbytes);
  const std::size_t first = std::min(count, channel * each);
  return {first, std::min(each, count - first)};
}

}  // namespace ringcomm::streams
