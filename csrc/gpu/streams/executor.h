// Carries out programs on streams: NCCL sends messages, reduction kernels add.
//
// A program becomes a schedule (gpu/streams/schedule.h) when it is first run on chunks of given
// counts. From then on a call walks over its commands, computes addresses from places, and
// allocates nothing. Everything is enqueued, and the host waits for nothing.
//
// The calls go to CUDA and NCCL (gpu/nccl/api.h), to a counter (gpu/streams/cost.cpp), or in tests
// to a simulator of streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/streams/schedule.h"
#include "plan/pipeline.h"
#include "reduce/partition.h"
#include "reduce/types.h"

namespace ringcomm::streams {

// T::Stream, Event and Comm are handles, cheap to copy.
template <typename T>
concept StreamApi =
    requires(T& api, typename T::Stream stream, typename T::Event event, typename T::Comm comm,
             std::byte* data, const void* const* inputs, std::size_t size, int number,
             const Reduction& reduction, Wait why, const Pipeline& pipeline) {
      // The messages between the two are of one or more channels, and none waits for another.
      api.group_start();
      api.send(data, /*nbytes=*/size, /*peer=*/number, comm, stream);
      api.recv(data, /*nbytes=*/size, /*peer=*/number, comm, stream);
      api.group_end();

      api.reduce(reduction, inputs, /*num_inputs=*/number, /*output=*/data, /*count=*/size, stream);
      api.copy(/*to=*/data, /*from=*/inputs[0], /*nbytes=*/size, stream);
      api.record(event, stream);
      api.wait(stream, event, why);

      // A profiler shows this range around a tick.
      api.push_range(pipeline, /*tick=*/number);
      api.pop_range();
    };

// One channel's share of the device.
template <StreamApi Api>
struct Channel {
  typename Api::Comm comm;
  // Channel 0's communication stream is the one that calls begin and end on.
  typename Api::Stream communication, reduction;
  std::byte* scratch;  // Layout::channel_scratch_nbytes() of them, aligned to kAlignment
  typename Api::Event communicated;
  std::vector<typename Api::Event> reduced;  // Layout::slices_in_flight of them
};

// The schedules of one rank, each made when it is first needed.
//
// A program is identified by its address, and must outlive this object. The program decides which
// chunks have an input and an output on this rank.
class Schedules {
 public:
  Schedules(int rank, const Layout& layout) : rank_(rank), layout_(layout) {}

  // The result stays valid until the next call.
  const Schedule& find(const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction);

 private:
  static constexpr std::size_t kMost = 64;

  struct Shape {
    std::size_t count;
    bool in_place;  // the input is the output

    bool operator==(const Shape&) const = default;
  };
  struct Entry {
    const Program* program;
    std::size_t element_nbytes;
    bool scales;
    std::vector<Shape> shapes;  // of the chunks
    Schedule schedule;
    std::uint64_t last_use;

    bool is_for(const Program& wanted, std::span<const Chunk> chunks, std::size_t nbytes,
                bool with_scaling) const;
  };

  static Shape shape_of(const Chunk& chunk) { return {chunk.count, chunk.input == chunk.output}; }
  Entry& vacant();

  const int rank_;
  const Layout layout_;
  std::vector<Entry> entries_;
  std::uint64_t num_uses_ = 0;
};

inline const Schedule& Schedules::find(const Program& program, std::span<const Chunk> chunks,
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

inline bool Schedules::Entry::is_for(const Program& wanted, std::span<const Chunk> chunks,
                                     std::size_t nbytes, bool with_scaling) const {
  return program == &wanted && element_nbytes == nbytes && scales == with_scaling &&
         std::equal(
             shapes.begin(), shapes.end(), chunks.begin(), chunks.end(),
             [](const Shape& shape, const Chunk& chunk) { return shape == shape_of(chunk); });
}

// A new entry, or the one that has not been used for the longest time.
inline Schedules::Entry& Schedules::vacant() {
  if (entries_.size() < kMost) return entries_.emplace_back();
  return *std::min_element(entries_.begin(), entries_.end(),
                           [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
}

// The executor of one rank. All ranks run the same programs in the same order.
template <StreamApi Api>
class Executor {
 public:
  using Stream = typename Api::Stream;
  using Event = typename Api::Event;

  Executor(int rank, const Layout& layout, std::vector<Channel<Api>> channels, Event began)
      : schedules_(rank, layout), channels_(std::move(channels)), began_(began) {}

  // Enqueues the program behind what is on channel 0's communication stream, and makes that stream
  // wait for its end. A collective that only moves data ignores reduction.op.
  void run(Api& api, const Program& program, std::span<const Chunk> chunks,
           const Reduction& reduction) {
    const Call call{api, schedules_.find(program, chunks, reduction), chunks, reduction};
    for (const Command& command : call.schedule.commands) {
      std::visit([&](const auto& each) { enqueue(call, each); }, command);
    }
  }

 private:
  struct Call {
    Api& api;
    const Schedule& schedule;
    const std::span<const Chunk> chunks;
    const Reduction& reduction;

    std::size_t element_nbytes() const { return element_size(reduction.dtype); }
  };

  void enqueue(const Call& call, const BeginTick& begin) {
    call.api.push_range(call.schedule.pipeline, begin.tick);
  }
  void enqueue(const Call& call, const EndTick&) { call.api.pop_range(); }

  void enqueue(const Call& call, const Record& record) {
    call.api.record(event(record.event), stream(record.stream));
  }
  void enqueue(const Call& call, const AwaitEvent& wait) {
    call.api.wait(stream(wait.stream), event(wait.event), wait.why);
  }

  void enqueue(const Call& call, const Group& group) {
    call.api.group_start();
    for (const PieceTransfer& transfer :
         std::span(call.schedule.transfers).subspan(group.first_transfer, group.num_transfers)) {
      const Channel<Api>& channel = channels_[transfer.place.channel];
      std::byte* data = find(call, transfer.place);
      const std::size_t nbytes = transfer.count * call.element_nbytes();
      if (transfer.is_send) {
        call.api.send(data, nbytes, transfer.peer, channel.comm, channel.communication);
      } else {
        call.api.recv(data, nbytes, transfer.peer, channel.comm, channel.communication);
      }
    }
    call.api.group_end();
  }

  void enqueue(const Call& call, const Sum& sum) {
    inputs_.clear();
    for (const Place& place :
         std::span(call.schedule.inputs).subspan(sum.first_input, sum.num_inputs)) {
      inputs_.push_back(find(call, place));
    }
    Reduction reduction = call.reduction;
    if (!sum.finish) reduction.divisor = 1;
    reduction.scaled_input = sum.scaled_input;
    call.api.reduce(reduction, inputs_.data(), sum.num_inputs, find(call, sum.output), sum.count,
                    stream(sum.stream));
  }

  void enqueue(const Call& call, const Copy& copy) {
    call.api.copy(find(call, copy.to), find(call, copy.from), copy.count * call.element_nbytes(),
                  stream(copy.stream));
  }

  void enqueue(const Call& call, const Keep& keep) {
    const std::size_t at = keep.range.first * call.element_nbytes();
    const void* input = call.chunks[keep.chunk].input + at;
    std::byte* output = call.chunks[keep.chunk].output + at;
    if (call.reduction.op == ReduceOp::kPremulSum) {
      Reduction reduction = call.reduction;
      reduction.scaled_input = 0;
      call.api.reduce(reduction, &input, 1, output, keep.range.count, stream(keep.stream));
    } else {
      call.api.copy(output, input, keep.range.count * call.element_nbytes(), stream(keep.stream));
    }
  }

  // Scratch begins as far from a multiple of kPackBytes as the input that it is added to: kernels
  // load whole packs only where they can of all inputs.
  std::byte* find(const Call& call, const Place& place) const {
    const Chunk& chunk = call.chunks[place.chunk];
    if (place.where == Place::kScratch) {
      const auto address = reinterpret_cast<std::uintptr_t>(chunk.input);
      return channels_[place.channel].scratch + place.slot * call.schedule.slot_nbytes +
             address % kPackBytes;
    }
    // Inputs are only read.
    std::byte* data =
        place.where == Place::kOutput ? chunk.output : const_cast<std::byte*>(chunk.input);
    return data + place.first * call.element_nbytes();
  }

  Stream stream(const StreamId& id) const {
    const Channel<Api>& channel = channels_[id.channel];
    return id.kind == StreamId::kReduction ? channel.reduction : channel.communication;
  }

  Event event(const EventId& id) const {
    if (id.kind == EventId::kBegan) return began_;
    const Channel<Api>& channel = channels_[id.channel];
    return id.kind == EventId::kReduced ? channel.reduced[id.index] : channel.communicated;
  }

  Schedules schedules_;
  const std::vector<Channel<Api>> channels_;
  const Event began_;
  std::vector<const void*> inputs_;  // of one sum; kept for its memory
};

}  // namespace ringcomm::streams
