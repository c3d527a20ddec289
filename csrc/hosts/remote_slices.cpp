#include "hosts/remote_slices.h"

#include <algorithm>

#include "core/chunks.h"
#include "hosts/streams.h"
#include "shm/group.h"

namespace ringcomm::hosts {

LinkedSlices::LinkedSlices(Group& group, links::Engine& links, int num_lanes)
    : group_(group),
      links_(links),
      num_lanes_(num_lanes),
      sent_(group.world_size),
      received_(group.world_size),
      per_round_sent_(group.world_size),
      per_round_received_(group.world_size),
      lanes_(num_lanes) {}

LinkedSlices::~LinkedSlices() {
  for (RemoteLane& lane : lanes_) {
    for (std::size_t i = 0; i < num_arrivals_; ++i) links_.cancel(lane.arrivals[i].request);
    for (SendBuffer& send_buffer : lane.send_buffers) {
      for (Slice& sent : send_buffer.slices) links_.cancel(sent.request);
    }
  }
}

void LinkedSlices::begin(const Program& program, std::span<const std::size_t> chunk_nbytes,
                         std::size_t slot_nbytes) {
  for (int peer = 0; peer < group_.world_size; ++peer) {
    sent_[peer] += num_rounds_ * per_round_sent_[peer];
    received_[peer] += num_rounds_ * per_round_received_[peer];
  }
  program_ = &program;
  chunk_nbytes_ = chunk_nbytes;
  slot_nbytes_ = slot_nbytes;
  const std::size_t most = chunk_nbytes.empty() ? 0 : *std::ranges::max_element(chunk_nbytes);
  num_rounds_ = divide_up(most, slot_nbytes);

  num_places_ = std::max<std::size_t>(kAhead / slot_nbytes, std::max(program.num_slots, 1));
  std::ranges::fill(per_round_sent_, 0);
  std::ranges::fill(per_round_received_, 0);
  for (const Action& action : program.actions) {
    for (const Reader& reader : action.to) ++per_round_sent_[reader.peer];
    for (const Source& source : action.from) ++per_round_received_[source.peer];
    num_places_ = std::max(num_places_, num_from_others(action));
  }
  // All that was posted has been taken.
  const std::size_t num_arrivals = std::max(num_arrivals_, num_places_);
  const std::size_t arrival_nbytes = std::max(arrival_nbytes_, num_places_ * slot_nbytes);
  for (int l = 0; l < num_lanes_; ++l) {
    RemoteLane& lane = lanes_[l];
    if (num_arrivals > num_arrivals_) lane.arrivals.reset(new Slice[num_arrivals]);
    if (arrival_nbytes > arrival_nbytes_) lane.memory.reset(new std::byte[arrival_nbytes]);
    if (lane.send_buffers.size() < num_places_) lane.send_buffers.resize(num_places_);
    lane.round = l;
    lane.action = 0;
  }
  num_arrivals_ = num_arrivals;
  arrival_nbytes_ = arrival_nbytes;
  for (int l = 0; l < num_lanes_; ++l) post_ahead(l);
}

links::Tag LinkedSlices::tag(int lane, std::uint64_t number) const {
  return {static_cast<std::uint8_t>(kFirstLane + lane), number % kNumbers};
}

std::size_t LinkedSlices::num_from_others(const Action& action) const {
  return std::ranges::count_if(action.from,
                               [&](const Source& s) { return !group_.is_local(s.peer); });
}

bool LinkedSlices::goes_to_others(const Action& action) const {
  return std::ranges::any_of(action.to, [&](const Reader& r) { return !group_.is_local(r.peer); });
}

void LinkedSlices::post_ahead(int l) {
  RemoteLane& lane = lanes_[l];
  while (lane.round < num_rounds_) {
    const Action& action = program_->actions[lane.action];
    const std::size_t offset = lane.round * slot_nbytes_;
    const bool has_slice = offset < chunk_nbytes_[action.chunk];
    const std::size_t wanted = has_slice ? num_from_others(action) : 0;
    if (lane.posted - lane.taken + wanted > num_places_) return;
    for (const Source& source : action.from) {
      if (wanted == 0 || group_.is_local(source.peer)) continue;
      const std::size_t nbytes = std::min(slot_nbytes_, chunk_nbytes_[action.chunk] - offset);
      Slice& arrival = this->arrival(lane, lane.posted);
      arrival.peer = source.peer;
      const std::uint64_t number =
          received_[source.peer] + lane.round * per_round_received_[source.peer] + source.message;
      links_.recv(source.peer, tag(l, number), {memory(lane, lane.posted), nbytes},
                  arrival.request);
      ++lane.posted;
    }
    if (++lane.action == program_->actions.size()) {
      lane.action = 0;
      lane.round += num_lanes_;
    }
  }
}

bool LinkedSlices::is_ready(int l, const Action& action) const {
  bool ready = true;
  each_awaited(l, action, [&](int) { ready = false; });
  return ready;
}

const std::byte* LinkedSlices::slice(int l, const Action& action, std::size_t i) const {
  const RemoteLane& lane = lanes_[l];
  std::uint64_t number = lane.taken;
  for (std::size_t k = 0; k < i; ++k) number += !group_.is_local(action.from[k].peer);
  return memory(lane, number);
}

void LinkedSlices::take(int l, const Action& action) {
  const std::size_t taken = num_from_others(action);
  if (taken == 0) return;
  lanes_[l].taken += taken;
  post_ahead(l);
}

std::byte* LinkedSlices::send_buffer(int l) {
  RemoteLane& lane = lanes_[l];
  SendBuffer& send_buffer = lane.send_buffers[lane.sent % num_places_];
  if (send_buffer.nbytes < slot_nbytes_) {
    send_buffer.memory.reset(new std::byte[slot_nbytes_]);
    send_buffer.nbytes = slot_nbytes_;
  }
  return send_buffer.memory.get();
}

void LinkedSlices::send(int l, std::size_t round, const Action& action, std::size_t nbytes) {
  RemoteLane& lane = lanes_[l];
  SendBuffer& send_buffer = lane.send_buffers[lane.sent++ % num_places_];
  std::size_t used = 0;
  for (const Reader& reader : action.to) {
    if (group_.is_local(reader.peer)) continue;
    if (used == send_buffer.slices.size()) send_buffer.slices.emplace_back();
    Slice& slice = send_buffer.slices[used++];
    slice.peer = reader.peer;
    const std::uint64_t number =
        sent_[reader.peer] + round * per_round_sent_[reader.peer] + reader.message;
    links_.send(reader.peer, tag(l, number), {send_buffer.memory.get(), nbytes}, slice.request);
  }
}

void LinkedSlices::each_awaited(int l, const Action& action,
                                const std::function<void(int)>& visit) const {
  const RemoteLane& lane = lanes_[l];
  const std::size_t wanted = num_from_others(action);
  for (std::size_t i = 0; i < wanted; ++i) {
    const Slice& arrival = this->arrival(lane, lane.taken + i);
    if (!arrival.request.done()) visit(arrival.peer);
  }
  if (!goes_to_others(action)) return;
  for (const Slice& sent : lane.send_buffers[lane.sent % num_places_].slices) {
    if (!sent.request.done()) visit(sent.peer);
  }
}

}  // namespace ringcomm::hosts
