#include "gpu/streams/schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/streams/channel_scheduler.h"

namespace ringcomm::streams {
namespace {

// The messages of all channels are one group, so that their kernels are launched together.
void add_tick(std::vector<ChannelScheduler>& channels, int tick, Schedule& schedule) {
  int num_transfers = 0;
  for (ChannelScheduler& channel : channels) {
    channel.look_at(tick);
    num_transfers += static_cast<int>(channel.transfers().size());
  }
  if (num_transfers == 0) return;

  schedule.commands.push_back(BeginTick{tick});
  for (ChannelScheduler& channel : channels) channel.before_group();
  schedule.commands.push_back(Group{static_cast<int>(schedule.transfers.size()), num_transfers});
  for (ChannelScheduler& channel : channels) {
    schedule.transfers.insert(schedule.transfers.end(), channel.transfers().begin(),
                              channel.transfers().end());
  }
  for (ChannelScheduler& channel : channels) channel.after_group();
  schedule.commands.push_back(EndTick{});
}

// A record is useless if nothing waits for the event before it is recorded again.
void drop_unawaited_records(std::vector<Command>& commands) {
  std::vector<EventId> awaited;
  std::vector<Command> kept;
  for (auto command = commands.rbegin(); command != commands.rend(); ++command) {
    if (const auto* wait = std::get_if<AwaitEvent>(&*command)) awaited.push_back(wait->event);
    const auto* record = std::get_if<Record>(&*command);
    if (record == nullptr || std::erase(awaited, record->event) > 0) kept.push_back(*command);
  }
  commands.assign(kept.rbegin(), kept.rend());
}

}  // namespace

Schedule make_schedule(int rank, const Layout& layout, const Program& program,
                       std::span<const Chunk> chunks, std::size_t element_nbytes, bool scales) {
  const Work work(rank, layout, program, chunks, element_nbytes, scales);
  Schedule schedule{work.pieces.pipeline, work.pieces.slot_nbytes, {}, {}, {}};
  std::vector<ChannelScheduler> channels;
  for (int c = 0; c < work.pieces.num_channels(); ++c) channels.emplace_back(work, c, schedule);
  schedule.commands.push_back(Record{{EventId::kBegan}, kOrigin});
  for (ChannelScheduler& channel : channels) channel.begin();
  for (int tick = 0; tick < schedule.pipeline.num_ticks(); ++tick) {
    add_tick(channels, tick, schedule);
  }
  for (ChannelScheduler& channel : channels) channel.end();
  drop_unawaited_records(schedule.commands);
  return schedule;
}

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

// A new entry, or the one that has not been used for the longest time.
Schedules::Entry& Schedules::vacant() {
  if (entries_.size() < kMost) return entries_.emplace_back();
  return *std::min_element(entries_.begin(), entries_.end(),
                           [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
}

}  // namespace ringcomm::streams
