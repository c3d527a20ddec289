// Carries out programs on streams: NCCL sends messages, reduction kernels add.
//
// A program becomes a schedule (gpu/streams/schedule.h) when it is first run on chunks of given
// counts. From then on a call walks over its commands, computes addresses from places, and
// allocates nothing. Everything is enqueued, and the host waits for nothing.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/streams/api.h"
#include "gpu/streams/schedule.h"
#include "reduce/partition.h"

namespace ringcomm::streams {

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
