#include "shm/executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/lanes.h"
#include "core/policy.h"
#include "core/status.h"
#include "reduce/host.h"

namespace ringcomm::shm {
Executor::Executor(Group& group)
    : group_(group),
      num_lanes_(group.segment().num_lanes()),
      lanes_(num_lanes_),
      stores_(group.world_size + 1) {
  for (Lane& lane : lanes_) lane.seen.resize(group.world_size);
  if (group.remote_hosts() != nullptr) remote_ = group.remote_hosts()->make_slices(num_lanes_);
}

std::size_t Executor::slot_nbytes(const Program& program) const {
  const std::size_t num_slots = std::max(program.num_slots, 1);
  return group_.geometry().slots_nbytes / num_slots / kSliceAlignment * kSliceAlignment;
}

void Executor::check_fits(const Program& program) const {
  if (slot_nbytes(program) > 0) return;
  const std::size_t most = group_.geometry().slots_nbytes / kSliceAlignment;
  throw Error(ErrorKind::kInvalidArgument,
              "the plan needs " + std::to_string(program.num_slots) +
                  " slots in each rank's outbox, so that no order of execution can deadlock, and "
                  "an outbox of " +
                  std::to_string(group_.geometry().slots_nbytes) + " bytes has at most " +
                  std::to_string(most) + " of " + std::to_string(kSliceAlignment) +
                  " bytes. Fewer chunks, or fewer of them sent at once, would fit.");
}

void Executor::provide_scratch(std::size_t nbytes) {
  if (nbytes > scratch_nbytes_) {
    scratch_.reset(new std::byte[num_lanes_ * nbytes]);
    scratch_nbytes_ = nbytes;
  }
  for (int l = 0; l < num_lanes_; ++l) lanes_[l].scratch = scratch_.get() + l * scratch_nbytes_;
}

void Executor::run(const Program& program, std::span<const Chunk> chunks,
                   const Reduction& reduction, const Call& call, const Deadline& deadline) {
  if (program.actions.empty()) return;
  std::size_t most = 0;
  for (const Chunk& chunk : chunks) most = std::max(most, chunk.count);
  const std::size_t element_nbytes = element_size(reduction.dtype);
  const std::size_t sent_unasked = remote_ ? remote_->one_shot_nbytes() : 0;
  const std::size_t slice_count =
      slice_nbytes(call.collective, slot_nbytes(program), most * element_nbytes, sent_unasked) /
      element_nbytes;
  Job job{program,
          chunks,
          reduction,
          element_nbytes,
          slice_count,
          round_up(std::min(most, slice_count) * element_nbytes, kSliceAlignment),
          divide_up(most, slice_count),
          call.sequence << kActionBits,
          current_span_sink(),
          num_lanes_};
  job.pass = pass_for(job, call);
  provide_scratch(program.num_scratch * job.stride);
  if (remote_) {
    chunk_nbytes_.clear();
    for (const Chunk& chunk : chunks) chunk_nbytes_.push_back(chunk.count * element_nbytes);
    remote_->begin(program, chunk_nbytes_, job.slot_nbytes());
  }
  for (int l = 0; l < num_lanes_; ++l) {
    Lane& lane = lanes_[l];
    lane.action = 0;
    lane.round = l;
    lane.done = job.began;
    lane.slots_at = job.is_short() ? lane.rotation.take(program.num_slots * job.stride,
                                                        group_.geometry().outbox_nbytes)
                                   : 0;
  }

  auto unfinished = [&] {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [&](const Lane& lane) { return lane.round < job.num_rounds; });
  };
  while (unfinished()) {
    Backoff idle(group_, deadline);
    for (bool progress = false; !progress;) {
      for (int l = 0; l < num_lanes_; ++l) {
        while (advance(job, l)) progress = true;
      }
      if (!progress)
        idle.pause([&] { return WaitInfo{awaited(job), describe_numbered(call, group_.members)}; });
    }
  }
  if (remote_) leave_nothing_behind(call, deadline);
}

// What an all-reduce writes it has read shortly before.
Pass Executor::pass_for(const Job& job, const Call& call) const {
  if (job.is_short()) return group_.shares_cores() ? Pass::kStraight : Pass::kInStrands;
  if (call.reduces) return Pass::kStraight;
  std::size_t received = 0;
  for (const Action& action : job.program.actions) {
    if (!action.from.empty()) received += job.chunks[action.chunk].count * job.element_nbytes;
  }
  return received >= kLeastStreamed ? Pass::kStreaming : Pass::kStraight;
}

// Afterwards this rank may be busy elsewhere for long. A rank that has completed the call has got
// all of it, and may have left.
void Executor::leave_nothing_behind(const Call& call, const Deadline& deadline) {
  Backoff idle(group_, deadline);
  const auto completed = [&](int peer) {
    return group_.segment().state(peer).completed.load(std::memory_order_acquire) >= call.sequence;
  };
  while (!group_.remote_hosts()->flushed()) {
    std::vector<int> awaited = group_.remote();
    std::erase_if(awaited, completed);
    if (awaited.empty()) return;
    idle.pause(
        [&] { return WaitInfo{std::move(awaited), describe_numbered(call, group_.members)}; });
  }
}

bool Executor::advance(const Job& job, int l) {
  Lane& lane = lanes_[l];
  if (lane.round >= job.num_rounds) return false;
  const Action& action = job.program.actions[lane.action];
  if (job.has_slice(action.chunk, lane.round)) {
    const bool ready = each_awaited(
        job, l, [&](int peer, std::uint64_t progress) { return has_reached(l, peer, progress); });
    if (!ready) return false;
    if (remote_ && !remote_->is_ready(l, action)) return false;
    const Span span(job.spans, [&] {
      const int step = action.recv_step >= 0 ? action.recv_step : action.send_step;
      return "step " + std::to_string(step) + " slice " + std::to_string(lane.round);
    });
    perform(job, l, action);
    if (remote_) remote_->take(l, action);
  }
  group_.segment().progress(group_.rank, l).done.store(++lane.done, std::memory_order_release);
  group_.ring();
  if (++lane.action == job.program.actions.size()) {
    lane.action = 0;
    lane.round += num_lanes_;
  }
  return true;
}

template <typename Visit>
bool Executor::each_awaited(const Job& job, int l, Visit&& visit) {
  const Lane& lane = lanes_[l];
  const Action& action = job.program.actions[lane.action];
  const auto reached = [&](int peer, std::size_t round, int their_action) {
    const Turn last{their_action, round};
    return visit(peer, job.began + done_with(last, num_lanes_, job.program.num_actions[peer]));
  };
  for (const Source& source : action.from) {
    if (!group_.is_local(source.peer)) continue;
    if (!reached(source.peer, lane.round, source.action)) return false;
  }
  if (action.to.empty()) return true;
  Turn turn{static_cast<int>(lane.action), lane.round};
  const std::vector<Action>& actions = job.program.actions;
  const bool was_used = go_back_in_slot(
      turn, num_lanes_, [&](int a) { return actions[a].replaces; },
      [&](int a, std::size_t round) { return job.has_slice(actions[a].chunk, round); });
  if (!was_used) return true;
  for (const Reader& reader : actions[turn.action].to) {
    if (!group_.is_local(reader.peer)) continue;
    if (!reached(reader.peer, turn.round, reader.action)) return false;
  }
  return true;
}

bool Executor::has_reached(int l, int peer, std::uint64_t progress) {
  std::uint64_t& seen = lanes_[l].seen[peer];
  const auto is_enough = [&] { return static_cast<std::int64_t>(seen - progress) >= 0; };
  if (is_enough()) return true;
  seen = group_.segment().progress(peer, l).done.load(std::memory_order_acquire);
  return is_enough();
}

std::byte* Executor::at(const Job& job, int l, int chunk, const Location& location) {
  const std::size_t offset = lanes_[l].round * job.slot_nbytes();
  switch (location.kind) {
    case Location::kInput:
      return const_cast<std::byte*>(job.chunks[chunk].input) + offset;  // which is only read
    case Location::kOutput:
      return job.chunks[chunk].output + offset;
    case Location::kScratch:
      return lanes_[l].scratch + location.index * job.stride;
    case Location::kNowhere:
      break;
  }
  return nullptr;
}

std::byte* Executor::slot(const Job& job, int l, int rank, int slot) {
  return group_.segment().outbox(rank, l) + lanes_[l].slots_at + slot * job.stride;
}

StoreChoice* Executor::stores_for_readers(const Action& action) {
  StoreChoice* found = nullptr;
  for (const Reader& reader : action.to) {
    if (!group_.is_local(reader.peer)) continue;
    if (found != nullptr) return &stores_.back();
    found = &stores_[reader.peer];
  }
  return found;
}

void Executor::perform(const Job& job, int l, const Action& action) {
  const std::size_t offset = lanes_[l].round * job.slice_count;
  const std::size_t count = std::min(job.slice_count, job.chunks[action.chunk].count - offset);

  void* const kept = at(job, l, action.chunk, action.store);
  Copy sent[2] = {};
  std::size_t num_sent = 0;
  if (StoreChoice* const stores = stores_for_readers(action); stores != nullptr) {
    sent[num_sent++] = {slot(job, l, group_.rank, action.slot), stores};
  }
  const bool departs = remote_ && remote_->goes_to_others(action);
  if (departs) sent[num_sent++] = {remote_->send_buffer(l)};
  if (kept == nullptr && num_sent == 0) return;

  Reduction reduction = job.reduction;
  if (!action.finish) reduction.divisor = 1;
  const bool scale = reduction.op == ReduceOp::kPremulSum && action.own.kind == Location::kInput;
  const bool uses_own = action.own.kind != Location::kNowhere;
  inputs_.clear();
  // In rank order, so that a sum does not depend on which rank computes it.
  const auto add_own = [&] {
    if (scale) reduction.scaled_input = static_cast<int>(inputs_.size());
    inputs_.push_back(at(job, l, action.chunk, action.own));
  };
  bool own_added = !uses_own;
  for (std::size_t i = 0; i < action.from.size(); ++i) {
    const Source& source = action.from[i];
    if (!own_added && group_.rank < source.peer) {
      add_own();
      own_added = true;
    }
    const bool is_local = group_.is_local(source.peer);
    if (is_local) group_.segment().fault_in(Area::kOutboxes, source.peer);
    inputs_.push_back(is_local ? slot(job, l, source.peer, source.slot)
                               : remote_->slice(l, action, i));
  }
  if (!own_added) add_own();

  if (inputs_.size() > 1 || (action.from.empty() && (scale || reduction.divisor != 1))) {
    reduce_host(reduction, inputs_.data(), static_cast<int>(inputs_.size()), kept,
                std::span(sent).first(num_sent), count, job.pass);
  } else {
    copy_host(inputs_[0], kept, std::span(sent).first(num_sent), count * job.element_nbytes,
              job.pass);
  }
  if (departs) remote_->send(l, lanes_[l].round, action, count * job.element_nbytes);
}

std::vector<int> Executor::awaited(const Job& job) {
  std::vector<int> peers;
  for (int l = 0; l < num_lanes_; ++l) {
    if (lanes_[l].round >= job.num_rounds) continue;
    each_awaited(job, l, [&](int peer, std::uint64_t progress) {
      if (!has_reached(l, peer, progress) && std::ranges::find(peers, peer) == peers.end()) {
        peers.push_back(peer);
      }
      return true;
    });
    if (!remote_) continue;
    remote_->each_awaited(l, job.program.actions[lanes_[l].action], [&](int peer) {
      if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
    });
  }
  return peers;
}

}  // namespace ringcomm::shm
