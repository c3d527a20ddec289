#include "streams/lane.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringcomm::streams {

Work::Work(int rank, const Layout& layout, const Program& program, std::span<const Chunk> chunks,
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

Lane::Lane(const Work& work, int channel, Schedule& schedule)
    : work_(work),
      channel_(channel),
      schedule_(schedule),
      values_(work.chunks.size() * work.layout.slices_in_flight),
      wholes_(work.chunks.size()),
      slots_(work.pieces.num_slots * work.layout.slices_in_flight) {
  for (int s = 0; s < static_cast<int>(slots_.size()); ++s) free_slots_.push_back(s);
}

// What is kept goes beside the messages only where that saves more time than its events take.
void Lane::begin() {
  if (communication() != kOrigin) {
    schedule_.commands.push_back(AwaitEvent{communication(), {EventId::kBegan}, Wait::kBegin});
  }
  std::vector<Keep> kept;
  std::size_t nbytes = 0;
  for (const Action& action : work_.program.actions) {
    if (!action.from.empty() || !action.store) continue;
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

void Lane::look_at(int tick) {
  messages_.clear();
  scalings_.clear();
  sums_.clear();
  sent_slots_.clear();
  batch_before_send_ = batch_before_recv_ = kNone;
  work_.pieces.pipeline.at(tick, [&](int step, int slice, int) {
    for (const Action* action : work_.sends[step]) {
      const Piece piece = piece_of(*action, step, slice);
      if (piece.range.count > 0) add_send(*action, piece);
    }
    for (const Action* action : work_.recvs[step]) {
      const Piece piece = piece_of(*action, step, slice);
      if (piece.range.count > 0) add_recv(*action, piece);
    }
  });
}

void Lane::add_send(const Action& action, const Piece& piece) {
  const Value& value = value_of(piece);
  const bool scales = work_.scales && value.where == Place::kInput;
  if (piece.slice == kWhole && (scales || value.where == Place::kScratch)) {
    throw std::logic_error("a plan sends a whole chunk that is not an output of its rank");
  }
  Place from = place(piece, value);
  if (scales) {
    const int slot = take_slot();
    scalings_.push_back({piece, slot});
    sent_slots_.push_back(slot);
    from = scratch(piece, slot);
  } else {
    if (value.where == Place::kScratch) sent_slots_.push_back(value.slot);
    batch_before_send_ = std::max(batch_before_send_, value.batch);
  }
  for (const int peer : action.to) {
    messages_.push_back({/*is_send=*/true, peer, from, piece.range.count});
  }
}

void Lane::add_recv(const Action& action, const Piece& piece) {
  if (!action.reduce) {
    if (work_.chunks[action.chunk].output == nullptr) {
      throw std::logic_error("a plan copies a chunk that is not an output of its rank");
    }
    const Value value{.slice = piece.slice, .where = Place::kOutput};
    store(piece, value);
    messages_.push_back(
        {/*is_send=*/false, action.from.front(), place(piece, value), piece.range.count});
    return;
  }
  Addition sum{&action, piece, {}};
  for (const int peer : action.from) {
    const int slot = take_slot();
    batch_before_recv_ = std::max(batch_before_recv_, slots_[slot].batch);
    messages_.push_back({/*is_send=*/false, peer, scratch(piece, slot), piece.range.count});
    sum.slots.push_back(slot);
  }
  sums_.push_back(std::move(sum));
}

void Lane::before_group() {
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

void Lane::after_group() {
  if (messages_.empty()) return;
  const int group = num_groups_++;
  for (const int slot : sent_slots_) {
    slots_[slot].group = group;
    free_slots_.push_back(slot);
  }
  if (sums_.empty()) return;
  await_group(group, Wait::kArrived);
  for (const Addition& sum : sums_) enqueue(sum);
  if (work_.overlaps) end_batch();
}

void Lane::end() {
  const int last = num_batches_ - 1;
  if (last > awaited_batch_) {
    schedule_.commands.push_back(AwaitEvent{kOrigin, reduced(last), Wait::kAllAdded});
  }
  if (communication() == kOrigin) return;
  schedule_.commands.push_back(Record{communicated(), communication()});
  schedule_.commands.push_back(AwaitEvent{kOrigin, communicated(), Wait::kAllArrived});
}

void Lane::enqueue(const Scaling& scaling) {
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

// In the order of the ranks, so that a sum does not depend on who computes it.
void Lane::enqueue(const Addition& sum) {
  const Action& action = *sum.action;
  const Value own = value_of(sum.piece);
  const int first = static_cast<int>(schedule_.inputs.size());
  for (const int slot : sum.slots) {
    slots_[slot].batch = this_batch();
    schedule_.inputs.push_back(scratch(sum.piece, slot));
  }
  const auto after_own = std::lower_bound(action.from.begin(), action.from.end(), work_.rank);
  const int own_index = static_cast<int>(after_own - action.from.begin());
  schedule_.inputs.insert(schedule_.inputs.begin() + first + own_index, place(sum.piece, own));

  const bool is_output = work_.chunks[action.chunk].output != nullptr;
  const Value value{.slice = sum.piece.slice,
                    .where = is_output ? Place::kOutput : Place::kScratch,
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
}

void Lane::begin_reduction() {
  if (reduction_began_) return;
  schedule_.commands.push_back(AwaitEvent{reduction(), {EventId::kBegan}, Wait::kBegin});
  reduction_began_ = true;
}

// The reduction stream waits for a group of messages, and with it for the beginning of the call.
void Lane::await_group(int group, Wait why) {
  if (!work_.overlaps || group <= awaited_group_) return;
  schedule_.commands.push_back(Record{communicated(), communication()});
  schedule_.commands.push_back(AwaitEvent{reduction(), communicated(), why});
  awaited_group_ = num_groups_ - 1;
  reduction_began_ = true;
}

// The communication stream waits for a batch of sums. An event that was recorded again since stands
// for a later batch, and so for this one, too.
void Lane::await_batch(int batch, Wait why) {
  if (batch <= awaited_batch_) return;
  schedule_.commands.push_back(AwaitEvent{communication(), reduced(batch), why});
  const int events = work_.layout.slices_in_flight;
  awaited_batch_ = batch + (num_batches_ - 1 - batch) / events * events;
}

void Lane::end_batch() {
  schedule_.commands.push_back(Record{reduced(num_batches_), reduction()});
  ++num_batches_;
}

EventId Lane::reduced(int batch) const {
  return {EventId::kReduced, channel_, batch % work_.layout.slices_in_flight};
}

Lane::Piece Lane::piece_of(const Action& action, int step, int slice) const {
  const Pieces& pieces = work_.pieces;
  if (step >= work_.program.num_sliced_steps) {
    return {action.chunk, kWhole, pieces.part(action.chunk, channel_)};
  }
  return {action.chunk, slice, pieces.slice(action.chunk, channel_, slice)};
}

Lane::Value& Lane::value_of(const Piece& piece) {
  if (piece.slice == kWhole) return wholes_[piece.chunk];
  const int n = work_.layout.slices_in_flight;
  Value& value = values_[piece.chunk * n + piece.slice % n];
  if (value.slice != piece.slice) value = {.slice = piece.slice};
  return value;
}

// The last slice's value stands for the whole: the others are where it is, and were there before.
void Lane::store(const Piece& piece, const Value& value) {
  value_of(piece) = value;
  wholes_[piece.chunk] = value;
}

Place Lane::place(const Piece& piece, const Value& value) const {
  return {value.where, channel_, piece.chunk, value.slot, piece.range.first};
}

Place Lane::scratch(const Piece& piece, int slot) const {
  return {Place::kScratch, channel_, piece.chunk, slot, piece.range.first};
}

int Lane::take_slot() {
  if (free_slots_.empty()) throw std::logic_error("a plan needs more scratch than there is");
  const int slot = free_slots_.front();
  free_slots_.pop_front();
  return slot;
}

}  // namespace ringcomm::streams
