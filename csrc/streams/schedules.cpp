#include "streams/schedules.h"

#include <algorithm>
#include <utility>

namespace ringcomm::streams {

const Schedule& Schedules::find(const Program& program, std::span<const Chunk> chunks,
                                const Reduction& reduction) {
  const std::size_t element_nbytes = element_size(reduction.dtype);
  const bool scales = reduction.op == ReduceOp::kPremulSum;
  ++num_uses_;
  for (Entry& entry : entries_) {
    if (!entry.is_for(program, chunks, element_nbytes, scales)) continue;
    entry.last_use = num_uses_;
    return entry.schedule;
  }
  std::vector<Shape> shapes;
  for (const Chunk& chunk : chunks) shapes.push_back(shape_of(chunk));
  Schedule schedule = make_schedule(rank_, layout_, program, chunks, element_nbytes, scales);
  Entry& entry = vacant();
  entry = {&program, element_nbytes, scales, std::move(shapes), std::move(schedule), num_uses_};
  return entry.schedule;
}

bool Schedules::Entry::is_for(const Program& wanted, std::span<const Chunk> chunks,
                              std::size_t nbytes, bool with_scaling) const {
  return program == &wanted && element_nbytes == nbytes && scales == with_scaling &&
         std::equal(
             shapes.begin(), shapes.end(), chunks.begin(), chunks.end(),
             [](const Shape& shape, const Chunk& chunk) { return shape == shape_of(chunk); });
}

// A new one, or the one that was not used for the longest time.
Schedules::Entry& Schedules::vacant() {
  if (entries_.size() < kMost) return entries_.emplace_back();
  return *std::min_element(entries_.begin(), entries_.end(),
                           [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
}

}  // namespace ringcomm::streams
