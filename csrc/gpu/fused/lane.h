// A lane: some threads of a block that do their part of a call, from the first slice to the last.
//
// It is core/lanes.h's schedule, that of shm/executor.h, on memory of a device. A step
//
//   1. waits until the slices that it takes are published, and until all readers of its slot have
//      read what lay in it;
//   2. reads the slices in the outboxes of the peers, adds the own value, and writes the result to
//      the output, to the own outbox, or to both: one pass over the data;
//   3. writes the number of its finished steps to the flags of the ranks from which it has
//      taken slices, and of the ranks for which it has published a slice.
//
// Most of a lane's threads are movers: they do 2 and nothing else. A few, the control, do 1 and 3
// for them, and ahead of them: while a step's data move, the control writes the work item of the
// next step and looks whether that step may begin. If so, the step begins before the flags of the
// last one are written, because the fence in front of a flag takes as long as many steps do.
//
//   control  | write 1, await | give 1 | write 2, look | give 2 | flag 1 | write 3, look | ...
//   movers                             | move 1        |        | move 2                 | ...
//                                    kReady          kMoved   kReady                   kMoved
//
// Calls follow each other without the host: a rank that is still in the last call may still read
// the outboxes. So a rank that has finished a call writes that to the flags of all others, and
// before a lane writes anything it waits until all others have written so for the call before.
// These flags have been on their way since the last call ended, and usually they have arrived.
//
// Invariant: a flag says n only when the slices that the first n steps of its writer publish can be
// read, and those that they take are not read any more, as far as they concern the flag's owner.
// The control waits for a step's flags only when it has written the flags of all steps before. So
// the proof of plan/wiring.h that every wait ends holds here, too: the waits are the same.
//
// Plain C++: the machine is some threads of a block, or, for the proof, threads of the host. It has
//
//   sync(why)                 a barrier of the whole lane, kReady and kMoved by turns
//   work_item(turn)           the work item of that step, in memory that all threads share
//
// for movers
//
//   carry_out(work_item)      this thread's share of it
//
// and for the control
//
//   thread(), num_threads()   this thread's place in the control
//   all(value)                whether the value is true for all threads of the control
//   acquire(flag, why)        the flag's value, and all that was done before it was written
//   release(flag, value)      the reverse; flags are in the memory of any rank
//   aborted(spins, peer)      whether to end a wait that has looked so many times without success
//   waited()                  a wait is over
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/lanes.h"
#include "gpu/fused/job.h"
#include "reduce/device_arguments.h"

namespace ringcomm::fused {

// The reasons for each order between threads. The proof on the host leaves them out one by one.
enum class Why { kLastCall, kSlice, kSlot, kReady, kMoved };
inline constexpr Why kReasons[] = {Why::kLastCall, Why::kSlice, Why::kSlot, Why::kReady,
                                   Why::kMoved};

// One step of a lane, which the control threads write and the movers carry out.
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

// This is all that movers do.
template <typename Machine>
RINGCOMM_DEVICE void move_data(Machine& machine) {
  for (int turn = 0;; ++turn) {
    machine.sync(Why::kReady);
    const WorkItem& work_item = machine.work_item(turn);
    if (work_item.ends) return;
    machine.carry_out(work_item);
    machine.sync(Why::kMoved);
  }
}

template <typename Machine>
class LaneControl {
 public:
  RINGCOMM_DEVICE LaneControl(Machine& machine, const Job& job, const Script& script, int lane)
      : machine_(machine),
        job_(job),
        script_(script),
        lane_(lane),
        writer_(job, script, lane),
        call_(calls()),
        began_(static_cast<Progress>(call_) << kActionBits) {}

  // All threads of the control call this. False: a wait was given up, and the ranks cannot go on
  // together.
  RINGCOMM_DEVICE bool run() {
    if (machine_.thread() == 0) {
      for (int turn = 0; turn < kWorkItems; ++turn)
        machine_.work_item(turn).arguments.set_reduction(job_.reduction_arguments);
    }
    const bool came = take_steps();
    if (machine_.thread() == 0) machine_.work_item(turn_).ends = true;
    machine_.sync(Why::kReady);
    if (!came) return false;
    publish_to_all(static_cast<Progress>(call_ + 1) << kActionBits);
    machine_.all(true);  // every thread has read the number of the call
    if (machine_.thread() == 0) calls() = call_ + 1;
    return true;
  }

 private:
  RINGCOMM_DEVICE bool take_steps() {
    Progress done = began_;
    for (std::size_t round = lane_; round < job_.num_rounds; round += job_.num_lanes) {
      for (int s = 0; s < script_.num_steps; ++s) {
        ++done;
        if (!job_.has_slice(script_.steps[s].chunk, round)) continue;
        if (!take_step(s, round)) return false;
        last_ = {s, done};
        ++turn_;
      }
    }
    if (turn_ > 0) machine_.sync(Why::kMoved);
    return true;
  }

  RINGCOMM_DEVICE bool take_step(int s, std::size_t round) {
    if (machine_.thread() == 0) writer_.write(machine_.work_item(turn_), script_.steps[s], round);
    const bool looks = turn_ > 0 && job_.looks_ahead;
    const bool is_ready = looks && machine_.all(has_come(s, round));
    if (turn_ > 0) machine_.sync(Why::kMoved);
    if (is_ready) machine_.sync(Why::kReady);
    if (turn_ > 0) publish_to_peers(script_.steps[last_.action], last_.done);
    if (is_ready) return true;
    if (!machine_.all(await(s, round))) return false;
    machine_.sync(Why::kReady);
    return true;
  }

  RINGCOMM_DEVICE std::uint32_t& calls() const {
    return at<std::uint32_t>(job_.rank, job_.layout.calls_at(lane_));
  }
  template <typename T>
  RINGCOMM_DEVICE T& at(int rank, std::size_t offset) const {
    return *reinterpret_cast<T*>(job_.memory[rank] + offset);
  }

  // Part 1 of a step.

  // Calls visit(peer, progress, why) for each flag that this thread has to see, until it returns
  // false. Returns whether it always returned true.
  template <typename Visit>
  RINGCOMM_DEVICE bool each_awaited(int s, std::size_t round, Visit&& visit) {
    return (turn_ > 0 || each_of_last_call(visit)) && each_slice(s, round, visit) &&
           each_of_slot(s, round, visit);
  }

  template <typename Visit>
  RINGCOMM_DEVICE bool each_of_last_call(Visit& visit) {
    for (int peer = machine_.thread(); peer < job_.layout.world_size;
         peer += machine_.num_threads()) {
      if (peer != job_.rank && !visit(peer, began_, Why::kLastCall)) return false;
    }
    return true;
  }

  template <typename Visit>
  RINGCOMM_DEVICE bool each_slice(int s, std::size_t round, Visit& visit) {
    const Step& step = script_.steps[s];
    for (int i = machine_.thread(); i < step.num_sources; i += machine_.num_threads()) {
      const Peer& peer = script_.source(step, i);
      if (!visit(peer.rank, done_by(peer, round), Why::kSlice)) return false;
    }
    return true;
  }

  template <typename Visit>
  RINGCOMM_DEVICE bool each_of_slot(int s, std::size_t round, Visit& visit) {
    const Step* const steps = script_.steps;
    if (steps[s].num_readers == 0) return true;
    Turn turn{s, round};
    const bool was_used = go_back_in_slot(
        turn, job_.num_lanes, [&](int action) { return steps[action].replaces; },
        [&](int action, std::size_t r) { return job_.has_slice(steps[action].chunk, r); });
    if (!was_used) return true;
    const Step& writer = steps[turn.action];
    for (int i = machine_.thread(); i < writer.num_readers; i += machine_.num_threads()) {
      const Peer& peer = script_.reader(writer, i);
      if (!visit(peer.rank, done_by(peer, turn.round), Why::kSlot)) return false;
    }
    return true;
  }

  RINGCOMM_DEVICE Progress done_by(const Peer& peer, std::size_t round) const {
    return began_ + done_with({peer.action, round}, job_.num_lanes, peer.num_actions);
  }

  RINGCOMM_DEVICE bool has_come(int peer, Progress progress, Why why) {
    Progress& flag = at<Progress>(job_.rank, job_.layout.flag_at(lane_, peer));
    return static_cast<std::int64_t>(machine_.acquire(flag, why) - progress) >= 0;
  }
  RINGCOMM_DEVICE bool has_come(int s, std::size_t round) {
    return each_awaited(s, round, [this](int peer, Progress progress, Why why) {
      return has_come(peer, progress, why);
    });
  }
  RINGCOMM_DEVICE bool await(int s, std::size_t round) {
    return each_awaited(s, round, [this](int peer, Progress progress, Why why) {
      for (std::uint32_t spins = 0; !has_come(peer, progress, why); ++spins) {
        if (machine_.aborted(spins, peer)) return false;
      }
      machine_.waited();
      return true;
    });
  }

  // Part 3 of a step.

  RINGCOMM_DEVICE void publish(int peer, Progress progress) {
    machine_.release(at<Progress>(peer, job_.layout.flag_at(lane_, job_.rank)), progress);
  }
  RINGCOMM_DEVICE void publish_to_peers(const Step& step, Progress done) {
    for (int i = machine_.thread(); i < step.num_concerned; i += machine_.num_threads()) {
      publish(script_.concerned[step.first_concerned + i], done);
    }
  }
  RINGCOMM_DEVICE void publish_to_all(Progress progress) {
    for (int peer = machine_.thread(); peer < job_.layout.world_size;
         peer += machine_.num_threads()) {
      if (peer != job_.rank) publish(peer, progress);
    }
  }

  Machine& machine_;
  const Job& job_;
  const Script& script_;
  const int lane_;
  const WorkItemWriter writer_;
  const std::uint32_t call_;
  const Progress began_;
  int turn_ = 0;  // how many work items have been given to the movers
  struct {
    int action;
    Progress done;
  } last_{};
};

}  // namespace ringcomm::fused
