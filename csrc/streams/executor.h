// Carries out programs on streams: messages by NCCL, sums by reduction kernels.
//
// Channel c carries the c-th part of every chunk, cut into slices, on two streams of its own. At
// each tick of the pipeline (plan/pipeline.h) the communication stream runs one group of sends and
// receives; what is to be added arrives in scratch, and the reduction stream adds it afterwards,
// while the next groups are under way. A ring whose windows have three slices:
//
//      communication    | group 0 | group 1 | group 2 | group 3: sends on slice 0 |
//                                 \         \          ^
//      reduction                   | add 0 | | add 1 | ...      add 0 ended before
//
// A slice's value lies in the input, in the output, or, where it is a partial sum that is no output
// of this rank, in scratch. What is only copied is received in the output.
//
// Everything is enqueued, and nothing is waited for by the host. What keeps the streams in order is
// listed in streams/channel.h, with what an Api must offer.
#pragma once

#include <algorithm>
#include <deque>
#include <span>
#include <stdexcept>
#include <vector>

#include "streams/channel.h"
#include "streams/job.h"

namespace ringcomm::streams {

// One rank's. All ranks run the same programs in the same order.
template <typename Api>
class Executor {
 public:
  using Stream = typename Api::Stream;
  using Event = typename Api::Event;

  Executor(int rank, const Layout& layout, const std::vector<Channel<Api>>& channels, Event began)
      : rank_(rank), layout_(layout), began_(began) {
    for (const Channel<Api>& channel : channels) lanes_.push_back({.channel = channel});
  }

  // Enqueues the program behind what is on `origin`, and makes `origin` wait for its end. `origin`
  // is the same stream every time. For a collective that only moves data reduction.op is ignored.
  void run(Api& api, const Program& program, std::span<const Chunk> chunks,
           const Reduction& reduction, Stream origin) {
    const Job job(layout_, program, chunks, reduction);
    const auto lanes = std::span(lanes_).first(job.num_channels());
    api.record(began_, origin);
    for (Lane& lane : lanes) begin(api, job, lane);
    for (int tick = 0; tick < job.pipeline.num_ticks(); ++tick) {
      api.push_range(job.pipeline, tick);
      for (Lane& lane : lanes) advance(api, job, lane, tick);
      api.pop_range();
    }
    for (Lane& lane : lanes) end(api, lane, origin);
  }

 private:
  // Sums are numbered in batches: those of one tick, in the order of the reduction stream.
  static constexpr int kNoBatch = -1;

  // Where the value of a slice is.
  struct Place {
    enum Where { kInput, kOutput, kScratch };
    int slice = -1;
    Where where = kInput;
    int slot = -1;         // of the scratch
    int batch = kNoBatch;  // that stored it
  };

  struct Lane {
    Channel<Api> channel;
    std::vector<Place> places = {};      // [chunk][slice modulo slices_in_flight]
    std::vector<int> slot_batches = {};  // by slot: the last batch that used it
    std::deque<int> free_slots = {};     // the one longest unused first
    int num_batches = 0;
    int awaited = kNoBatch;  // the last batch that the communication stream waits for
  };

  struct Message {
    std::byte* data;
    std::size_t count;  // elements
    int peer;
  };

  // The slices in `slots` are added to the chunk's own, or, if there are none, that is scaled.
  struct Sum {
    const Action* action;
    int slice;
    Range piece;
    std::vector<int> slots;
  };

  // What happens in one lane at one tick.
  struct Tick {
    std::vector<Sum> scalings;
    std::vector<Message> sends, recvs;
    std::vector<Sum> sums;
    std::vector<int> sent_slots;
    int batch_before_send = kNoBatch;
    int batch_before_recv = kNoBatch;
  };

  int channel_of(const Lane& lane) const { return static_cast<int>(&lane - lanes_.data()); }

  void begin(Api& api, const Job& job, Lane& lane) {
    lane.places.assign(job.chunks.size() * layout_.slices_in_flight, {});
    lane.slot_batches.assign(job.num_slots * layout_.slices_in_flight, kNoBatch);
    lane.free_slots.clear();
    for (int s = 0; s < static_cast<int>(lane.slot_batches.size()); ++s) {
      lane.free_slots.push_back(s);
    }
    lane.num_batches = 0;
    lane.awaited = kNoBatch;
    api.wait(lane.channel.communication, began_, Wait::kBegin);
    api.wait(lane.channel.reduction, began_, Wait::kBegin);
    for (const Action& action : job.program.actions) {
      if (action.from.empty() && action.store) store_own(api, job, lane, action);
    }
  }

  // What begins here and stays here.
  void store_own(Api& api, const Job& job, Lane& lane, const Action& action) {
    const Range part = job.part(action.chunk, channel_of(lane));
    if (part.count == 0) return;
    const Chunk& chunk = job.chunks[action.chunk];
    const std::size_t at = part.first * job.element_nbytes;
    const void* input = chunk.input + at;
    std::byte* output = chunk.output + at;
    Reduction reduction = job.reduction;
    if (!action.finish) reduction.divisor = 1;
    if (job.scales) reduction.scaled_input = 0;
    if (job.scales || reduction.divisor != 1) {
      api.reduce(reduction, &input, 1, output, part.count, lane.channel.reduction);
    } else if (input != output) {
      api.copy(output, input, part.count * job.element_nbytes, lane.channel.reduction);
    }
  }

  void advance(Api& api, const Job& job, Lane& lane, int at) {
    Tick tick;
    job.pipeline.at(at, [&](int step, int slice) {
      for (const Action* action : job.sends[step]) add_send(job, lane, *action, slice, tick);
      for (const Action* action : job.recvs[step]) add_recv(job, lane, *action, slice, tick);
    });
    if (tick.sends.empty() && tick.recvs.empty()) return;
    const Channel<Api>& channel = lane.channel;

    if (!tick.scalings.empty()) {
      api.record(channel.communicated, channel.communication);
      api.wait(channel.reduction, channel.communicated, Wait::kSentBeforeScale);
      tick.batch_before_send = add(api, job, lane, tick.scalings);
    }
    await(api, lane, tick.batch_before_send, Wait::kAddedBeforeSend);
    await(api, lane, tick.batch_before_recv, Wait::kAddedBeforeRecv);
    api.group_start();
    for (const Message& m : tick.sends) {
      api.send(m.data, m.count * job.element_nbytes, m.peer, channel.comm, channel.communication);
    }
    for (const Message& m : tick.recvs) {
      api.recv(m.data, m.count * job.element_nbytes, m.peer, channel.comm, channel.communication);
    }
    api.group_end();
    for (const int slot : tick.sent_slots) lane.free_slots.push_back(slot);

    if (!tick.sums.empty()) {
      api.record(channel.communicated, channel.communication);
      api.wait(channel.reduction, channel.communicated, Wait::kArrived);
      add(api, job, lane, tick.sums);
    }
  }

  void end(Api& api, Lane& lane, Stream origin) {
    const Channel<Api>& channel = lane.channel;
    api.record(channel.communicated, channel.communication);
    api.wait(origin, channel.communicated, Wait::kAllArrived);
    record_batch(api, lane);
    api.wait(origin, reduced(lane, lane.num_batches - 1), Wait::kAllAdded);
  }

  void add_send(const Job& job, Lane& lane, const Action& action, int slice, Tick& tick) {
    const Range piece = job.piece(action.chunk, channel_of(lane), slice);
    if (piece.count == 0) return;
    const Place& place = place_of(lane, action.chunk, slice);
    std::byte* data = nullptr;
    if (place.where == Place::kInput && job.scales) {
      const int slot = take_slot(lane);
      tick.scalings.push_back({&action, slice, piece, {slot}});
      tick.sent_slots.push_back(slot);
      data = scratch(job, lane, slot);
    } else {
      if (place.where == Place::kScratch) tick.sent_slots.push_back(place.slot);
      tick.batch_before_send = std::max(tick.batch_before_send, place.batch);
      data = find(job, lane, action.chunk, piece, place);
    }
    for (const int peer : action.to) tick.sends.push_back({data, piece.count, peer});
  }

  void add_recv(const Job& job, Lane& lane, const Action& action, int slice, Tick& tick) {
    const Range piece = job.piece(action.chunk, channel_of(lane), slice);
    if (piece.count == 0) return;
    if (!action.reduce) {
      if (job.chunks[action.chunk].output == nullptr) {
        throw std::logic_error("a plan copies a chunk that is not an output of its rank");
      }
      Place& place = place_of(lane, action.chunk, slice);
      place = {.slice = slice, .where = Place::kOutput};
      std::byte* data = find(job, lane, action.chunk, piece, place);
      tick.recvs.push_back({data, piece.count, action.from.front()});
      return;
    }
    Sum sum{&action, slice, piece, {}};
    for (const int peer : action.from) {
      const int slot = take_slot(lane);
      tick.batch_before_recv = std::max(tick.batch_before_recv, lane.slot_batches[slot]);
      tick.recvs.push_back({scratch(job, lane, slot), piece.count, peer});
      sum.slots.push_back(slot);
    }
    tick.sums.push_back(std::move(sum));
  }

  // Enqueues the sums, or scalings, as the next batch; returns its number.
  int add(Api& api, const Job& job, Lane& lane, const std::vector<Sum>& sums) {
    const int batch = lane.num_batches;
    for (const Sum& sum : sums) {
      for (const int slot : sum.slots) lane.slot_batches[slot] = batch;
      sum.action->from.empty() ? scale(api, job, lane, sum) : add(api, job, lane, sum, batch);
    }
    record_batch(api, lane);
    return batch;
  }

  void scale(Api& api, const Job& job, Lane& lane, const Sum& sum) {
    const void* input = find(job, lane, sum.action->chunk, sum.piece, Place{});
    Reduction reduction = job.reduction;
    reduction.scaled_input = 0;
    api.reduce(reduction, &input, 1, scratch(job, lane, sum.slots[0]), sum.piece.count,
               lane.channel.reduction);
  }

  // In the order of the ranks, so that a sum does not depend on who computes it.
  void add(Api& api, const Job& job, Lane& lane, const Sum& sum, int batch) {
    const Action& action = *sum.action;
    Place& place = place_of(lane, action.chunk, sum.slice);
    std::vector<const void*> inputs;
    for (std::size_t i = 0; i < action.from.size(); ++i) {
      inputs.push_back(scratch(job, lane, sum.slots[i]));
    }
    const auto own = std::lower_bound(action.from.begin(), action.from.end(), rank_);
    const auto own_index = own - action.from.begin();
    inputs.insert(inputs.begin() + own_index, find(job, lane, action.chunk, sum.piece, place));

    Reduction reduction = job.reduction;
    if (!action.finish) reduction.divisor = 1;
    if (job.scales && place.where == Place::kInput) {
      reduction.scaled_input = static_cast<int>(own_index);
    }
    const bool is_output = job.chunks[action.chunk].output != nullptr;
    place = {sum.slice, is_output ? Place::kOutput : Place::kScratch, sum.slots[0], batch};
    api.reduce(reduction, inputs.data(), static_cast<int>(inputs.size()),
               find(job, lane, action.chunk, sum.piece, place), sum.piece.count,
               lane.channel.reduction);
    for (const int slot : sum.slots) {
      if (place.where != Place::kScratch || slot != place.slot) lane.free_slots.push_back(slot);
    }
  }

  void record_batch(Api& api, Lane& lane) {
    api.record(reduced(lane, lane.num_batches), lane.channel.reduction);
    ++lane.num_batches;
  }

  // An event that was recorded again since stands for a later batch, and so for this one, too.
  void await(Api& api, Lane& lane, int batch, Wait why) {
    if (batch <= lane.awaited) return;
    api.wait(lane.channel.communication, reduced(lane, batch), why);
    const int events = static_cast<int>(lane.channel.reduced.size());
    lane.awaited = batch + (lane.num_batches - 1 - batch) / events * events;
  }

  Event reduced(const Lane& lane, int batch) const {
    return lane.channel.reduced[batch % lane.channel.reduced.size()];
  }

  Place& place_of(Lane& lane, int chunk, int slice) {
    const int n = layout_.slices_in_flight;
    Place& place = lane.places[chunk * n + slice % n];
    if (place.slice != slice) place = {.slice = slice};
    return place;
  }

  std::byte* find(const Job& job, const Lane& lane, int chunk, const Range& piece,
                  const Place& place) const {
    if (place.where == Place::kScratch) return scratch(job, lane, place.slot);
    const Chunk& c = job.chunks[chunk];
    // NCCL's ncclSend and the reductions only read what they are given as input.
    std::byte* data = place.where == Place::kOutput ? c.output : const_cast<std::byte*>(c.input);
    return data + piece.first * job.element_nbytes;
  }

  std::byte* scratch(const Job& job, const Lane& lane, int slot) const {
    return lane.channel.scratch + slot * job.slot_nbytes;
  }

  int take_slot(Lane& lane) {
    if (lane.free_slots.empty()) throw std::logic_error("a plan needs more scratch than there is");
    const int slot = lane.free_slots.front();
    lane.free_slots.pop_front();
    return slot;
  }

  const int rank_;
  const Layout layout_;
  const Event began_;
  std::vector<Lane> lanes_;
};

}  // namespace ringcomm::streams
