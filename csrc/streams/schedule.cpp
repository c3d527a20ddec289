#include "streams/schedule.h"

#include <algorithm>
#include <vector>

#include "streams/channel_scheduler.h"

namespace ringcomm::streams {
namespace {

// One group for the messages of all channels: their kernels are launched together.
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

// A record that nothing waits for before the event is recorded again is of no use.
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

}  // namespace ringcomm::streams
