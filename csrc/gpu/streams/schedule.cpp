#include "gpu/streams/schedule.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ringcomm::streams {
namespace {

// The input of a schedule.
struct Work {
  Work(int rank, const Layout& layout, const Program& program, std::span<const Chunk> chunks,
       std::size_t element_nbytes, bool scales)
      : rank(rank),
        layout(layout),
        program(program),
        chunks(chunks),
        element_nbytes(element_nbytes),
        scales(scales),
        pieces(layout, program, chunks, element_nbytes, scales),
        overlaps(program.max_added > 0 && pieces.pipeline.window > 1),
        sends(program.num_steps),
        recvs(program.num_steps) {
    for (const Action& action : program.actions) {
      if (!action.to.empty()) sends[action.send_step].push_back(&action);
      if (!action.from.empty()) recvs[action.recv_step].push_back(&action);
    }
  }

  const int rank;
  const Layout& layout;
  const Program& program;
  const std::span<const Chunk> chunks;
  const std::size_t element_nbytes;
  const bool scales;
  const Pieces pieces;
  const bool overlaps;  // sums run beside messages
  // By step: the actions that send, and those that receive.
  std::vector<std::vector<const Action*>> sends, recvs;
};

bool is_kept(const Action& action) { return action.store.kind != Location::kNowhere; }
bool is_used(const Action& action) { return is_kept(action) || !action.to.empty(); }

// Schedules one channel: it knows where the values are, which scratch is free, and how far the two
// streams have come.
class ChannelScheduler {
 public:
  ChannelScheduler(const Work& work, int channel, Schedule& schedule)
      : work_(work),
        channel_(channel),
        schedule_(schedule),
        values_(work.chunks.size() * work.pieces.pipeline.num_slices),
        wholes_(work.chunks.size()),
        slots_(work.pieces.num_slots * work.layout.slices_in_flight) {
    for (int s = 0; s < static_cast<int>(slots_.size()); ++s) free_slots_.push_back(s);
  }

  // Pieces that are kept are copied beside the messages only if this saves more time than its
  // events take.
  void begin() {
    if (communication() != kOrigin) {
      schedule_.commands.push_back(AwaitEvent{communication(), {EventId::kBegan}, Wait::kBegin});
    }
    std::vector<Keep> kept;
    std::size_t nbytes = 0;
    for (const Action& action : work_.program.actions) {
      if (!action.from.empty() || !is_kept(action)) continue;
      const Chunk& chunk = work_.chunks[action.chunk];
      const Range part = work_.pieces.part(action.chunk, channel_);
      if (part.count == 0 || (chunk.input == chunk.output && !work_.scales)) continue;
      kept.push_back({communication(), action.chunk, part});
      nbytes += part.count * work_.element_nbytes;
    }
    const bool beside = work_.program.num_steps > 0 && nbytes >= work_.layout.min_slice_nbytes;
    if (beside) begin_reduction();
    for (Keep& keep : kept) {
      if (beside) keep.stream = reduction();
      schedule_.commands.push_back(keep);
    }
    if (beside) end_batch();
  }

  // The three parts of one tick: finding what is sent and received, then the commands before that
  // group of transfers, and those after it.
  void look_at(int tick) {
    transfers_.clear();
    scalings_.clear();
    sums_.clear();
    asides_.clear();
    sent_slots_.clear();
    passed_slots_.clear();
    batch_before_send_ = batch_before_recv_ = kNone;
    work_.pieces.pipeline.at(tick, [&](int step, int slice, int) {
      for (const Action* action : work_.sends[step]) {
        const Piece piece = piece_of(*action, step, slice);
        if (piece.range.count > 0) add_send(*action, piece);
      }
      in_order_of_numbers(found_);
      for (const Action* action : work_.recvs[step]) {
        const Piece piece = piece_of(*action, step, slice);
        if (piece.range.count > 0) add_recv(*action, piece);
      }
      in_order_of_numbers(found_);
    });
  }

  const std::vector<PieceTransfer>& transfers() const { return transfers_; }

  void before_group() {
    if (!scalings_.empty()) {
      if (work_.overlaps) begin_reduction();
      int group = kNone;
      for (const Scaling& scaling : scalings_) group = std::max(group, slots_[scaling.slot].group);
      await_group(group, Wait::kSentBeforeScale);
      batch_before_send_ = std::max(batch_before_send_, this_batch());
      for (const Scaling& scaling : scalings_) enqueue(scaling);
      if (work_.overlaps) end_batch();
    }
    await_batch(batch_before_send_, Wait::kAddedBeforeSend);
    await_batch(batch_before_recv_, Wait::kAddedBeforeRecv);
  }

  void after_group() {
    if (transfers_.empty()) return;
    const int group = num_groups_++;
    for (const Aside& aside : asides_) enqueue(aside);
    for (const int slot : sent_slots_) slots_[slot].group = group;
    for (const int slot : passed_slots_) {
      slots_[slot].group = group;
      free_slots_.push_back(slot);
    }
    if (sums_.empty()) return;
    await_group(group, Wait::kArrived);
    for (const Addition& sum : sums_) enqueue(sum);
    if (work_.overlaps) end_batch();
  }

  void end() {
    const int last = num_batches_ - 1;
    if (last > awaited_batch_) {
      schedule_.commands.push_back(AwaitEvent{kOrigin, reduced(last), Wait::kAllAdded});
    }
    if (communication() == kOrigin) return;
    schedule_.commands.push_back(Record{communicated(), communication()});
    schedule_.commands.push_back(AwaitEvent{kOrigin, communicated(), Wait::kAllArrived});
  }

 private:
  // The sums of one tick are a batch. Batches are numbered, and so are groups of messages.
  static constexpr int kNone = -1;
  static constexpr int kWhole = -1;  // instead of a slice: all of them

  struct Piece {
    int chunk;
    int slice;
    Range range;
  };
  // The place of a piece's value.
  struct Value {
    Place::Where where = Place::kInput;
    int slot = -1;      // of the scratch
    int batch = kNone;  // that stored it
  };
  struct Slot {
    int batch = kNone;  // the last that used it
    int group = kNone;  // the last that sent from it
  };
  // A transfer, and its number among those of the same two ranks.
  struct Numbered {
    PieceTransfer transfer;
    int number;
  };
  // The pieces in `slots` are added to the own one.
  struct Addition {
    const Action* action;
    Piece piece;
    std::vector<int> slots;
  };
  // The data received in `slot` are copied to the output.
  struct Aside {
    Piece piece;
    int slot;
  };
  // The own piece is multiplied, into `slot`.
  struct Scaling {
    Piece piece;
    int slot;
  };

  void add_send(const Action& action, const Piece& piece) {
    const Value& value = value_of(piece);
    const bool scales = work_.scales && value.where == Place::kInput;
    if (piece.slice == kWhole && (scales || value.where == Place::kScratch)) {
      throw std::logic_error("a plan sends a whole chunk that is not an output of its rank");
    }
    Place from = place(piece, value);
    if (scales) {
      const int slot = take_slot();
      scalings_.push_back({piece, slot});
      passed_slots_.push_back(slot);
      from = scratch(piece, slot);
    } else {
      const bool passes = action.from.empty() ? action.last_use : !is_kept(action);
      if (value.where == Place::kScratch) {
        sent_slots_.push_back(value.slot);
        if (passes) passed_slots_.push_back(value.slot);
      }
      batch_before_send_ = std::max(batch_before_send_, value.batch);
    }
    for (const Reader& reader : action.to) {
      found_.push_back({{/*is_send=*/true, reader.peer, from, piece.range.count}, reader.message});
    }
  }

  void add_recv(const Action& action, const Piece& piece) {
    if (action.reduce) {
      add_sum(action, piece);
    } else {
      add_copy(action, piece);
    }
  }

  void add_sum(const Action& action, const Piece& piece) {
    Addition sum{&action, piece, {}};
    for (const Source& source : action.from) {
      const int slot = take_slot();
      batch_before_recv_ = std::max(batch_before_recv_, slots_[slot].batch);
      found_.push_back({{/*is_send=*/false, source.peer, scratch(piece, slot), piece.range.count},
                        source.message});
      sum.slots.push_back(slot);
    }
    if (is_used(action)) {
      sums_.push_back(std::move(sum));
    } else {
      passed_slots_.insert(passed_slots_.end(), sum.slots.begin(), sum.slots.end());
    }
  }

  void add_copy(const Action& action, const Piece& piece) {
    const Source& source = action.from.front();
    const bool is_output = work_.chunks[action.chunk].output != nullptr;
    Value value{.where = Place::kOutput};
    Place to = place(piece, value);
    // Sums may still be writing to what this replaces, or reading it.
    batch_before_recv_ = std::max(batch_before_recv_, value_of(piece).batch);
    if (action.aside || !is_output) {
      const int slot = take_slot();
      batch_before_recv_ = std::max(batch_before_recv_, slots_[slot].batch);
      to = scratch(piece, slot);
      if (is_output) {
        asides_.push_back({piece, slot});
        passed_slots_.push_back(slot);
      } else {
        value = {.where = Place::kScratch, .slot = slot};
        if (!is_used(action)) passed_slots_.push_back(slot);
      }
    }
    found_.push_back({{/*is_send=*/false, source.peer, to, piece.range.count}, source.message});
    store(piece, value);
  }

  // Two ranks identify messages by their order alone, and programs change the order: data that is
  // passed on is an action before data that is sent for the first time.
  void in_order_of_numbers(std::vector<Numbered>& found) {
    std::ranges::stable_sort(found, {}, &Numbered::number);
    for (const Numbered& each : found) transfers_.push_back(each.transfer);
    found.clear();
  }

  // Inputs are added in rank order, so that a sum does not depend on which rank computes it.
  void enqueue(const Addition& sum) {
    const Action& action = *sum.action;
    const Value own = value_of(sum.piece);
    const int first = static_cast<int>(schedule_.inputs.size());
    for (const int slot : sum.slots) {
      slots_[slot].batch = this_batch();
      schedule_.inputs.push_back(scratch(sum.piece, slot));
    }
    const auto after_own = std::ranges::lower_bound(action.from, work_.rank, {}, &Source::peer);
    const int own_index = static_cast<int>(after_own - action.from.begin());
    schedule_.inputs.insert(schedule_.inputs.begin() + first + own_index, place(sum.piece, own));

    const bool is_output = work_.chunks[action.chunk].output != nullptr;
    const Value value{.where = is_output ? Place::kOutput : Place::kScratch,
                      .slot = sum.slots[0],
                      .batch = this_batch()};
    store(sum.piece, value);
    schedule_.commands.push_back(
        Sum{.stream = stream_of_sums(),
            .first_input = first,
            .num_inputs = static_cast<int>(sum.slots.size()) + 1,
            .output = place(sum.piece, value),
            .count = sum.piece.range.count,
            .scaled_input = work_.scales && own.where == Place::kInput ? own_index : -1,
            .finish = action.finish});
    for (const int slot : sum.slots) {
      if (is_output || slot != value.slot) free_slots_.push_back(slot);
    }
    if (own.where == Place::kScratch) {
      slots_[own.slot].batch = this_batch();
      free_slots_.push_back(own.slot);
    }
  }

  void enqueue(const Aside& aside) {
    const Value copied{.where = Place::kOutput};
    schedule_.commands.push_back(Copy{communication(), scratch(aside.piece, aside.slot),
                                      place(aside.piece, copied), aside.piece.range.count});
  }

  void enqueue(const Scaling& scaling) {
    slots_[scaling.slot].batch = this_batch();
    schedule_.commands.push_back(Sum{.stream = stream_of_sums(),
                                     .first_input = static_cast<int>(schedule_.inputs.size()),
                                     .num_inputs = 1,
                                     .output = scratch(scaling.piece, scaling.slot),
                                     .count = scaling.piece.range.count,
                                     .scaled_input = 0,
                                     .finish = false});
    schedule_.inputs.push_back(place(scaling.piece, Value{}));
  }

  void begin_reduction() {
    if (reduction_began_) return;
    schedule_.commands.push_back(AwaitEvent{reduction(), {EventId::kBegan}, Wait::kBegin});
    reduction_began_ = true;
  }

  // The reduction stream waits for a group of messages, and with it for the beginning of the call.
  void await_group(int group, Wait why) {
    if (!work_.overlaps || group <= awaited_group_) return;
    schedule_.commands.push_back(Record{communicated(), communication()});
    schedule_.commands.push_back(AwaitEvent{reduction(), communicated(), why});
    awaited_group_ = num_groups_ - 1;
    reduction_began_ = true;
  }

  // The communication stream waits for a batch of sums. If the event was recorded again since, it
  // stands for a later batch, and so for this one, too.
  void await_batch(int batch, Wait why) {
    if (batch <= awaited_batch_) return;
    schedule_.commands.push_back(AwaitEvent{communication(), reduced(batch), why});
    const int events = work_.layout.slices_in_flight;
    awaited_batch_ = batch + (num_batches_ - 1 - batch) / events * events;
  }

  void end_batch() {
    schedule_.commands.push_back(Record{reduced(num_batches_), reduction()});
    ++num_batches_;
  }

  Piece piece_of(const Action& action, int step, int slice) const {
    const Pieces& pieces = work_.pieces;
    if (step >= work_.program.num_sliced_steps) {
      return {action.chunk, kWhole, pieces.part(action.chunk, channel_)};
    }
    return {action.chunk, slice, pieces.slice(action.chunk, channel_, slice)};
  }

  Value& value_of(const Piece& piece) {
    if (piece.slice == kWhole) return wholes_[piece.chunk];
    return values_[static_cast<std::size_t>(piece.chunk) * work_.pieces.pipeline.num_slices +
                   piece.slice];
  }

  // The last slice's value stands for the whole: the other slices are in the same place, and were
  // there before.
  void store(const Piece& piece, const Value& value) {
    value_of(piece) = value;
    wholes_[piece.chunk] = value;
  }

  Place place(const Piece& piece, const Value& value) const {
    return {value.where, channel_, piece.chunk, value.slot, piece.range.first};
  }

  Place scratch(const Piece& piece, int slot) const {
    return {Place::kScratch, channel_, piece.chunk, slot, piece.range.first};
  }

  int take_slot() {
    if (free_slots_.empty()) throw std::logic_error("a plan needs more scratch than there is");
    const int slot = free_slots_.front();
    free_slots_.pop_front();
    return slot;
  }

  StreamId communication() const { return {channel_, StreamId::kCommunication}; }
  StreamId reduction() const { return {channel_, StreamId::kReduction}; }
  StreamId stream_of_sums() const { return work_.overlaps ? reduction() : communication(); }
  EventId communicated() const { return {EventId::kCommunicated, channel_}; }

  EventId reduced(int batch) const {
    return {EventId::kReduced, channel_, batch % work_.layout.slices_in_flight};
  }

  int this_batch() const { return work_.overlaps ? num_batches_ : kNone; }

  const Work& work_;
  const int channel_;
  Schedule& schedule_;

  std::vector<Value> values_;   // [chunk][slice]
  std::vector<Value> wholes_;   // [chunk]: the same for all its slices together
  std::vector<Slot> slots_;     // of the scratch
  std::deque<int> free_slots_;  // the one longest unused first

  int num_batches_ = 0, num_groups_ = 0;
  int awaited_batch_ = kNone;     // the last that the communication stream waits for
  int awaited_group_ = kNone;     // the last that the reduction stream waits for
  bool reduction_began_ = false;  // it has waited for something of this call

  // The members below describe the tick that look_at() looked at.
  std::vector<PieceTransfer> transfers_;
  std::vector<Numbered> found_;  // of one step, in one direction
  std::vector<Scaling> scalings_;
  std::vector<Addition> sums_;
  std::vector<Aside> asides_;
  std::vector<int> sent_slots_;
  std::vector<int> passed_slots_;  // not needed after this tick's messages
  int batch_before_send_ = kNone;
  int batch_before_recv_ = kNone;
};

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

}  // namespace ringcomm::streams
