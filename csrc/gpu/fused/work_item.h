// A work item: one step of a lane, which the control threads write and the data threads carry out.
#pragma once

#include <cstddef>

#include "gpu/fused/job.h"
#include "reduce/device_arguments.h"

namespace ringcomm::fused {

struct WorkItem {
  DeviceArguments arguments;
  bool moves;  // it copies the bits of the one input, whatever the type
  bool ends;   // no step is left
};

// The movers carry out one while the control writes the next.
inline constexpr int kWorkItems = 2;

// Writes a step as a work item: where its inputs and outputs lie.
class WorkItemWriter {
 public:
  RINGCOMM_DEVICE WorkItemWriter(const Job& job, const Script& script, int lane)
      : job_(job), script_(script), lane_(lane) {}

  // One thread calls this. The arguments already hold what all steps have in common.
  RINGCOMM_DEVICE void write(WorkItem& work_item, const Step& step, std::size_t round) const {
    DeviceArguments& args = work_item.arguments;
    args.num_inputs = args.num_outputs = 0;
    for (int i = 0; i < step.num_sources; ++i) {
      if (i == step.own_input) add_input(args, locate(step, step.own, round));
      const Peer& peer = script_.source(step, i);
      add_input(args, slot(peer.rank, step, peer.slot));
    }
    if (step.own_input == step.num_sources) add_input(args, locate(step, step.own, round));

    work_item.ends = false;
    work_item.moves = moves(step);
    const std::byte* const stays = work_item.moves ? args.inputs[0] : nullptr;
    if (step.store.kind != Location::kNowhere) {
      add_output(args, locate(step, step.store, round), stays);
    }
    if (step.num_readers > 0) add_output(args, slot(job_.rank, step, step.slot), stays);

    args.divisor = step.finish ? job_.reduction_arguments.divisor : 1;
    args.scaled_input = scales(step) ? step.own_input : -1;
    const std::size_t first = round * job_.slice_count;
    const std::size_t left = job_.pieces[step.chunk].count - first;
    const std::size_t count = left < job_.slice_count ? left : job_.slice_count;
    const std::size_t unit = work_item.moves ? 1 : job_.unit_nbytes;
    args.divide_among_threads(unit, count * job_.element_nbytes / unit);
  }

 private:
  RINGCOMM_DEVICE bool scales(const Step& step) const {
    return job_.premultiplies && step.own.kind == Location::kInput;
  }
  // Whether the result has the bits of the only value that is used.
  RINGCOMM_DEVICE bool moves(const Step& step) const {
    const int num_inputs = step.num_sources + (step.own_input >= 0 ? 1 : 0);
    return num_inputs == 1 && !scales(step) &&
           !(step.finish && job_.reduction_arguments.divisor > 1);
  }

  RINGCOMM_DEVICE static void add_input(DeviceArguments& args, const std::byte* input) {
    args.inputs[args.num_inputs++] = input;
  }
  // In place, a value that stays where it is need not be copied.
  RINGCOMM_DEVICE static void add_output(DeviceArguments& args, std::byte* output,
                                         const std::byte* stays) {
    if (output != stays) args.outputs[args.num_outputs++] = output;
  }

  RINGCOMM_DEVICE std::byte* locate(const Step& step, const Location& location,
                                    std::size_t round) const {
    const Piece& piece = job_.pieces[step.chunk];
    const std::size_t offset = round * job_.slice_count * job_.element_nbytes;
    if (location.kind == Location::kScratch) {
      return job_.scratch + lane_ * job_.scratch_nbytes + location.index * job_.slot_nbytes +
             piece.skew;
    }
    if (location.kind == Location::kOutput) return piece.output + offset;
    return const_cast<std::byte*>(piece.input) + offset;  // which is only read
  }

  RINGCOMM_DEVICE std::byte* slot(int rank, const Step& step, int slot) const {
    return job_.memory[rank] + job_.layout.outbox_at(lane_) + slot * job_.slot_nbytes +
           job_.pieces[step.chunk].skew;
  }

  const Job& job_;
  const Script& script_;
  const int lane_;
};

}  // namespace ringcomm::fused
