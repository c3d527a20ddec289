// A lane: what one thread block does of a call, from the first slice to the last.
//
// It is core/lanes.h's schedule, that of shm/executor.h, on memory of a device. A step
//
//   1. waits until the slices that it takes are published, and until its slot has been read by all
//      who were to read what lay in it;
//   2. reads the slices in the outboxes of the peers, adds the own value, and writes the result to
//      the output, to the own outbox, or to both: one pass over the data;
//   3. tells those whose slices it has taken, and those for whom it has published one, how many
//      steps are done.
//
// The threads of a block share each of the three: a thread waits for one peer, moves a part of the
// data, tells one peer. Between 1 and 2, and between 2 and 3, stands a barrier.
//
// Calls follow each other without the host: what lies in the outboxes may still be read by a rank
// that is not done with the last call. So whoever is done with a call tells everybody, and before a
// lane writes anything it waits until everybody has told so of the call before. That word has been
// on its way since the last call ended, and as a rule it is there.
//
// Invariant: a flag says n only when the slices that the first n steps of its writer publish can be
// read, and those that they take are not read any more, as far as they concern the flag's owner.
// That nobody waits for ever is plan/slots.h's proof: the waits are the same.
//
// Plain C++: the machine is a thread block, or, for the proof, threads of the host. It has
//
//   thread(), num_threads()   this thread's place in the block
//   sync(why)                 a barrier of the block
//   any(value, why)           the same; whether the value is true for any of its threads
//   acquire(flag, why)        the flag's value, and all that was done before it was written
//   release(flag, value)      the reverse; flags are in the memory of any rank
//   gives_up(spins, peer)     whether to end a wait that has looked so many times in vain
//   waited()                  a wait is over
//   arguments()               in memory that the block's threads share; at first the job's `told`
//   carry_out(moves)          this thread's share of what the arguments say
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/lanes.h"
#include "fused/job.h"

namespace ringcomm::fused {

// Why a machine is asked to order what threads do; what a proof leaves out.
enum class Why { kLastCall, kSlice, kSlot, kReady, kMoved, kEnd };
inline constexpr Why kReasons[] = {Why::kLastCall, Why::kSlice, Why::kSlot,
                                   Why::kReady,    Why::kMoved, Why::kEnd};

template <typename Machine>
class Lane {
 public:
  RINGCOMM_DEVICE Lane(Machine& machine, const Job& job, int lane)
      : machine_(machine), job_(job), lane_(lane) {}

  // All threads of the block. False: a wait was given up, and the ranks cannot go on together.
  RINGCOMM_DEVICE bool run() {
    std::uint32_t& calls = at<std::uint32_t>(job_.rank, job_.layout.calls_at(lane_));
    const std::uint32_t call = calls;
    began_ = static_cast<Progress>(call) << kActionBits;
    Progress done = began_;
    for (std::size_t round = lane_; round < job_.num_rounds; round += job_.num_lanes) {
      for (int s = 0; s < job_.script.num_steps; ++s) {
        ++done;
        const Step& step = job_.script.steps[s];
        if (!job_.has_slice(step.chunk, round)) continue;
        if (machine_.thread() == 0) prepare(step, round);
        const bool came = await_last_call() && await_slices(step, round) && await_slot(s, round);
        if (machine_.any(!came, Why::kReady)) return false;
        machine_.carry_out(moves(step));
        machine_.sync(Why::kMoved);
        tell_peers(step, done);
      }
    }
    machine_.sync(Why::kEnd);
    tell_all(static_cast<Progress>(call + 1) << kActionBits);
    if (machine_.thread() == 0) calls = call + 1;
    return true;
  }

 private:
  template <typename T>
  RINGCOMM_DEVICE T& at(int rank, std::size_t offset) const {
    return *reinterpret_cast<T*>(job_.memory[rank] + offset);
  }
  RINGCOMM_DEVICE std::byte* slot(int rank, const Step& step, int slot) const {
    return job_.memory[rank] + job_.layout.outbox_at(lane_) + slot * job_.slot_nbytes +
           job_.pieces[step.chunk].skew;
  }
  RINGCOMM_DEVICE const Peer& source_of(const Step& step, int i) const {
    return job_.script.peers[step.first_peer + i];
  }
  RINGCOMM_DEVICE const Peer& reader_of(const Step& step, int i) const {
    return job_.script.peers[step.first_peer + step.num_sources + i];
  }

  // 1.

  RINGCOMM_DEVICE bool await(int peer, Progress progress, Why why) {
    Progress& flag = at<Progress>(job_.rank, job_.layout.flag_at(lane_, peer));
    for (std::uint32_t spins = 0;
         static_cast<std::int64_t>(machine_.acquire(flag, why) - progress) < 0; ++spins) {
      if (machine_.gives_up(spins, peer)) return false;
    }
    machine_.waited();
    return true;
  }

  RINGCOMM_DEVICE bool await_step(const Peer& peer, std::size_t round, Why why) {
    const Progress done = done_with({peer.action, round}, job_.num_lanes, peer.num_actions);
    return await(peer.rank, began_ + done, why);
  }

  RINGCOMM_DEVICE bool await_last_call() {
    if (last_call_is_over_) return true;
    last_call_is_over_ = true;
    bool came = true;
    for (int peer = machine_.thread(); peer < job_.layout.world_size;
         peer += machine_.num_threads()) {
      if (peer != job_.rank) came = came && await(peer, began_, Why::kLastCall);
    }
    return came;
  }

  RINGCOMM_DEVICE bool await_slices(const Step& step, std::size_t round) {
    bool came = true;
    for (int i = machine_.thread(); i < step.num_sources; i += machine_.num_threads()) {
      came = came && await_step(source_of(step, i), round, Why::kSlice);
    }
    return came;
  }

  RINGCOMM_DEVICE bool await_slot(int s, std::size_t round) {
    const Step* const steps = job_.script.steps;
    if (steps[s].num_readers == 0) return true;
    Turn turn{s, round};
    const bool was_used = go_back_in_slot(
        turn, job_.num_lanes, [&](int action) { return steps[action].replaces; },
        [&](int action, std::size_t r) { return job_.has_slice(steps[action].chunk, r); });
    if (!was_used) return true;
    const Step& writer = steps[turn.action];
    bool came = true;
    for (int i = machine_.thread(); i < writer.num_readers; i += machine_.num_threads()) {
      came = came && await_step(reader_of(writer, i), turn.round, Why::kSlot);
    }
    return came;
  }

  // 2. All but moves() by one thread.

  RINGCOMM_DEVICE bool scales(const Step& step) const {
    return job_.premultiplies && step.own.kind == Location::kInput;
  }
  // Whether the result has the bits of the one value that is used.
  RINGCOMM_DEVICE bool moves(const Step& step) const {
    const int num_inputs = step.num_sources + (step.own_input >= 0 ? 1 : 0);
    return num_inputs == 1 && !scales(step) && !(step.finish && job_.told.divisor > 1);
  }

  RINGCOMM_DEVICE void prepare(const Step& step, std::size_t round) {
    DeviceArguments& args = machine_.arguments();
    args.num_inputs = args.num_outputs = 0;
    for (int i = 0; i < step.num_sources; ++i) {
      if (i == step.own_input) add_input(args, locate(step, step.own, round));
      const Peer& peer = source_of(step, i);
      add_input(args, slot(peer.rank, step, peer.slot));
    }
    if (step.own_input == step.num_sources) add_input(args, locate(step, step.own, round));

    const bool moves_only = moves(step);
    const std::byte* const stays = moves_only ? args.inputs[0] : nullptr;
    if (step.store.kind != Location::kNowhere) {
      add_output(args, locate(step, step.store, round), stays);
    }
    if (step.num_readers > 0) add_output(args, slot(job_.rank, step, step.slot), stays);

    args.divisor = step.finish ? job_.told.divisor : 1;
    args.scaled_input = scales(step) ? step.own_input : -1;
    const std::size_t first = round * job_.slice_count;
    const std::size_t left = job_.pieces[step.chunk].count - first;
    const std::size_t count = left < job_.slice_count ? left : job_.slice_count;
    const std::size_t unit = moves_only ? 1 : job_.unit_nbytes;
    args.divide_among_threads(unit, count * job_.element_nbytes / unit);
  }

  RINGCOMM_DEVICE static void add_input(DeviceArguments& args, const std::byte* input) {
    args.inputs[args.num_inputs++] = input;
  }
  // In place, what stays where it is need not be copied.
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

  // 3.

  RINGCOMM_DEVICE void tell(int peer, Progress progress) {
    machine_.release(at<Progress>(peer, job_.layout.flag_at(lane_, job_.rank)), progress);
  }
  RINGCOMM_DEVICE void tell_peers(const Step& step, Progress done) {
    for (int i = machine_.thread(); i < step.num_told; i += machine_.num_threads()) {
      tell(job_.script.told[step.first_told + i], done);
    }
  }
  RINGCOMM_DEVICE void tell_all(Progress progress) {
    for (int peer = machine_.thread(); peer < job_.layout.world_size;
         peer += machine_.num_threads()) {
      if (peer != job_.rank) tell(peer, progress);
    }
  }

  Machine& machine_;
  const Job& job_;
  const int lane_;
  Progress began_ = 0;
  bool last_call_is_over_ = false;
};

}  // namespace ringcomm::fused
