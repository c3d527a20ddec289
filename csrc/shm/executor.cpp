#include "shm/executor.h"

#include <algorithm>
#include <stdexcept>

namespace ringcomm::shm {
namespace {

constexpr int kMaxSlots = 256;               // a published word has 8 bits for the slot
constexpr std::size_t kSliceAlignment = 64;  // bytes; a multiple of every element

}  // namespace

Executor::Executor(Group& group) : group_(group), lanes_(kLanes) {
  for (Lane& lane : lanes_) {
    lane.sent.resize(group.world_size);
    lane.taken.resize(group.world_size);
  }
}

void Executor::run(const Program& program, std::span<const Chunk> chunks,
                   const Reduction& reduction, const Call& call, const Deadline& deadline) {
  if (program.actions.empty()) return;
  if (program.max_unread > kUnread || program.num_slots > kMaxSlots) {
    throw std::logic_error("a plan needs " + std::to_string(program.num_slots) +
                           " slots (at most " + std::to_string(kMaxSlots) + ") and leaves " +
                           std::to_string(program.max_unread) + " slices unread by one peer (" +
                           std::to_string(kUnread) + ")");
  }
  const std::size_t element_nbytes = element_size(reduction.dtype);
  const std::size_t num_slots = std::max(program.num_slots, 1);
  const std::size_t slot_nbytes =
      group_.geometry().outbox_nbytes / num_slots / kSliceAlignment * kSliceAlignment;
  std::size_t most = 0;
  for (const Chunk& chunk : chunks) most = std::max(most, chunk.count);
  const std::size_t slice_count = slot_nbytes / element_nbytes;
  const Job job{program,
                chunks,
                reduction,
                element_nbytes,
                slice_count,
                (most + slice_count - 1) / slice_count,
                current_span_sink()};
  for (int l = 0; l < kLanes; ++l) {
    lanes_[l].slots.resize(num_slots);
    for (Slot& slot : lanes_[l].slots) slot.readers.clear();
    lanes_[l].next_slot = 0;
    lanes_[l].action = 0;
    lanes_[l].round = l;
  }

  auto unfinished = [&] {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [&](const Lane& lane) { return lane.round < job.num_rounds; });
  };
  while (unfinished()) {
    Idle idle(group_, deadline);
    for (bool progress = false; !progress;) {
      for (int l = 0; l < kLanes; ++l) {
        while (advance(job, l)) progress = true;
      }
      if (!progress) idle.pause([&] { return Blocked{awaited(job), describe_numbered(call)}; });
    }
  }
}

bool Executor::advance(const Job& job, int l) {
  Lane& lane = lanes_[l];
  if (lane.round >= job.num_rounds) return false;
  const Action& action = job.program.actions[lane.action];
  const Chunk& chunk = job.chunks[action.chunk];
  const std::size_t offset = lane.round * job.slice_count;
  if (offset < chunk.count) {
    for (int peer : action.from) {
      if (!slice_ready(l, peer)) return false;
    }
    std::byte* slot = nullptr;
    if (!action.to.empty()) {
      if (!slot_free(l, lane.slots[lane.next_slot])) return false;
      for (int peer : action.to) {
        if (!edge_free(l, peer)) return false;
      }
      slot = group_.segment().outbox(group_.rank, l) +
             lane.next_slot * job.slice_count * job.element_nbytes;
    }
    const Span span(job.spans, [&] {
      const int step = action.recv_step >= 0 ? action.recv_step : action.send_step;
      return "step " + std::to_string(step) + " slice " + std::to_string(lane.round);
    });
    perform(job, l, action, offset, std::min(job.slice_count, chunk.count - offset), slot);
  }
  if (++lane.action == job.program.actions.size()) {
    lane.action = 0;
    lane.round += kLanes;
  }
  return true;
}

void Executor::perform(const Job& job, int l, const Action& action, std::size_t offset,
                       std::size_t count, std::byte* slot) {
  Lane& lane = lanes_[l];
  const Chunk& chunk = job.chunks[action.chunk];
  const std::size_t at = offset * job.element_nbytes;
  const std::byte* own = action.own_stored ? chunk.output : chunk.input;

  void* outputs[2];
  int num_outputs = 0;
  if (action.store) outputs[num_outputs++] = chunk.output + at;
  if (slot != nullptr) outputs[num_outputs++] = slot;

  Reduction reduction = job.reduction;
  if (!action.finish) reduction.divisor = 1;
  const bool scale = reduction.op == ReduceOp::kPremulSum && !action.own_stored;
  inputs_.clear();
  if (action.reduce || action.from.empty()) {
    // In rank order, so that a sum does not depend on who computes it.
    auto add_own = [&] {
      if (scale) reduction.scaled_input = static_cast<int>(inputs_.size());
      inputs_.push_back(own + at);
    };
    bool own_added = false;
    for (int peer : action.from) {
      if (!own_added && group_.rank < peer) {
        add_own();
        own_added = true;
      }
      inputs_.push_back(slice(job, l, peer));
    }
    if (!own_added) add_own();
  } else {
    inputs_.push_back(slice(job, l, action.from.front()));
  }

  if (inputs_.size() > 1 || (action.from.empty() && (scale || reduction.divisor != 1))) {
    reduce_host(reduction, inputs_.data(), static_cast<int>(inputs_.size()), outputs, num_outputs,
                count);
  } else {
    // In place, what stays where it is need not be copied.
    int keep = 0;
    for (int i = 0; i < num_outputs; ++i) {
      if (outputs[i] != inputs_[0]) outputs[keep++] = outputs[i];
    }
    if (keep > 0) copy_host(inputs_[0], outputs, keep, count * job.element_nbytes);
  }

  for (int peer : action.from) {
    group_.segment()
        .edge(peer, group_.rank, l)
        .taken.store(++lane.taken[peer], std::memory_order_release);
  }
  if (slot == nullptr) return;
  Slot& used = lane.slots[lane.next_slot];
  used.readers.clear();
  for (int peer : action.to) {
    const std::uint64_t position = lane.sent[peer]++;
    group_.segment()
        .edge(group_.rank, peer, l)
        .published[position % kUnread]
        .store((position + 1) << 8 | lane.next_slot, std::memory_order_release);
    used.readers.push_back({peer, position});
  }
  lane.next_slot = (lane.next_slot + 1) % lane.slots.size();
}

bool Executor::slice_ready(int l, int peer) {
  const std::uint64_t position = lanes_[l].taken[peer];
  const std::uint64_t published = group_.segment()
                                      .edge(peer, group_.rank, l)
                                      .published[position % kUnread]
                                      .load(std::memory_order_acquire);
  return published >> 8 == position + 1;
}

const std::byte* Executor::slice(const Job& job, int l, int peer) {
  const std::uint64_t published = group_.segment()
                                      .edge(peer, group_.rank, l)
                                      .published[lanes_[l].taken[peer] % kUnread]
                                      .load(std::memory_order_relaxed);
  return group_.segment().outbox(peer, l) +
         (published & 0xff) * job.slice_count * job.element_nbytes;
}

bool Executor::slot_free(int l, const Slot& slot) {
  return std::all_of(slot.readers.begin(), slot.readers.end(), [&](const Reader& reader) {
    return group_.segment()
               .edge(group_.rank, reader.peer, l)
               .taken.load(std::memory_order_acquire) > reader.position;
  });
}

bool Executor::edge_free(int l, int peer) {
  return lanes_[l].sent[peer] -
             group_.segment().edge(group_.rank, peer, l).taken.load(std::memory_order_acquire) <
         kUnread;
}

std::vector<int> Executor::awaited(const Job& job) {
  std::vector<int> peers;
  auto add = [&](int peer) {
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  };
  for (int l = 0; l < kLanes; ++l) {
    const Lane& lane = lanes_[l];
    if (lane.round >= job.num_rounds) continue;
    const Action& action = job.program.actions[lane.action];
    for (int peer : action.from) {
      if (!slice_ready(l, peer)) add(peer);
    }
    if (action.to.empty()) continue;
    for (int peer : action.to) {
      if (!edge_free(l, peer)) add(peer);
    }
    for (const Reader& reader : lane.slots[lane.next_slot].readers) {
      if (group_.segment().edge(group_.rank, reader.peer, l).taken.load() <= reader.position) {
        add(reader.peer);
      }
    }
  }
  return peers;
}

}  // namespace ringcomm::shm
