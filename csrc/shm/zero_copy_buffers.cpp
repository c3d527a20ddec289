// What ranks publish about their tensors, and which way the call goes for it.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>

#include "core/policy.h"
#include "shm/arena.h"
#include "shm/layout.h"
#include "shm/zero_copy.h"

namespace ringcomm::shm {
namespace {

constexpr std::size_t kAddress = 116;  // bytes of File::address, with a zero behind it

std::uint64_t address_of(const Chunk& block) {
  return reinterpret_cast<std::uintptr_t>(block.input);
}

}  // namespace

// What a rank announces. Its places follow: offsets in its arena, or addresses in its process.
struct ZeroCopy::BufferInfo {
  std::uint8_t reaches_arenas;     // of all that it must reach
  std::uint8_t reaches_processes;  // likewise
  Places places;
  std::uint8_t by_kernel;  // rank 0: places in processes are to be used
  char file[kAddress];     // of its arena; empty: its places are not there

  static std::size_t nbytes_with(std::size_t num_places) {
    return sizeof(BufferInfo) + num_places * sizeof(std::uint64_t);
  }
  std::string address() const { return {file, strnlen(file, sizeof(file))}; }
};

std::size_t ZeroCopy::most_nbytes() const { return BufferInfo::nbytes_with(most_places_); }

std::size_t ZeroCopy::publish_buffers(const Chunks& blocks, std::size_t element_nbytes,
                                      const PeerMemory& peers, std::byte* payload) {
  const Arena* const arena = Arena::existing();
  std::byte* at = payload + sizeof(BufferInfo);
  const auto publish_place = [&](std::uint64_t place) {
    std::memcpy(at, &place, sizeof(place));
    at += sizeof(place);
  };
  const auto publish_offset = [&](const std::byte* data, std::size_t count) {
    const auto place = count == 0 ? 0 : arena->find(data, count * element_nbytes);
    if (place) publish_place(*place);
    return place.has_value();
  };
  const bool lies_in_arena =
      arena != nullptr && arena->file().size() < kAddress &&
      std::ranges::all_of(
          inputs_, [&](int b) { return publish_offset(blocks[b].input, blocks[b].count); }) &&
      std::ranges::all_of(outputs_,
                          [&](int b) { return publish_offset(blocks[b].output, blocks[b].count); });

  BufferInfo info{};
  if (lies_in_arena && !inputs_.empty()) {
    info.places = Places::kInArena;
    std::memcpy(info.file, arena->file().data(), arena->file().size());
  } else if (!inputs_.empty()) {
    if (!is_exchange_ || !may_be_read(blocks, element_nbytes)) return 0;
    info.places = Places::kInProcess;
    at = payload + sizeof(BufferInfo);
    for (const int b : inputs_) publish_place(blocks[b].count == 0 ? 0 : address_of(blocks[b]));
  }
  info.reaches_arenas = std::ranges::all_of(reached_, [&](int r) { return peers.arenas.knows(r); });
  info.reaches_processes = is_exchange_ && std::ranges::all_of(reached_, [&](int r) {
                             return peers.processes.knows(r);
                           });
  taken_ = is_exchange_ ? nbytes_to_take(blocks, element_nbytes) : 0;
  const bool is_large = is_worth_taking(taken_, places_.size() - 1);
  choice_ = rank_ == 0 && is_large ? &choices_[std::bit_width(taken_) - 1] : nullptr;
  info.by_kernel = choice_ != nullptr && choice_->by_kernel();
  std::memcpy(payload, &info, sizeof(info));
  return static_cast<std::size_t>(at - payload);
}

// Whether the kernel would read this rank's parts for the others. It is asked once if a part
// stays where it is, as that is a system call, and of its first byte, which stands for all of it.
bool ZeroCopy::may_be_read(const Chunks& blocks, std::size_t element_nbytes) {
  std::size_t count = 0;
  for (std::size_t to = 0; to < inputs_.size(); ++to) {
    if (to != static_cast<std::size_t>(rank_)) count += blocks[inputs_[to]].count;
  }
  if (!is_worth_reading(count * element_nbytes, inputs_.size() - 1)) return count == 0;
  for (std::size_t to = 0; to < inputs_.size(); ++to) {
    const Chunk& block = blocks[inputs_[to]];
    const std::uint64_t place = address_of(block);
    if (to == static_cast<std::size_t>(rank_) || block.count == 0 || place == readable_[to])
      continue;
    if (!PeerProcesses::can_be_read(place)) return false;
    readable_[to] = place;
  }
  return true;
}

std::size_t ZeroCopy::nbytes_to_take(const Chunks& blocks, std::size_t element_nbytes) const {
  std::size_t count = 0;
  for (const Task& task : tasks_) {
    if (task.inputs.front().rank != rank_) count += blocks[task.block].count;
  }
  return count * element_nbytes;
}

std::uint64_t ZeroCopy::place_of(const Place& place, const Announced& all) {
  std::uint64_t at;
  std::memcpy(
      &at, all.exchange.payload_of(place.rank) + all.begin + BufferInfo::nbytes_with(place.index),
      sizeof(at));
  return at;
}

// Every rank looks at what all have published, and so finds the same.
bool ZeroCopy::is_open(const Announced& all) {
  bool all_tell = true, reach_arenas = true, reach_processes = true, by_kernel = false;
  bool any_in_arena = false, any_in_process = false;
  for (int r = 0; r < all.exchange.world_size(); ++r) {
    if (all.exchange.payload_kind(r) == PayloadKind::kInput) {
      all_tell = false;
      continue;
    }
    const std::byte* const payload = all.exchange.payload_of(r) + all.begin;
    const BufferInfo info = read_once(*reinterpret_cast<const BufferInfo*>(payload));
    places_[r] = info.places;
    any_in_arena = any_in_arena || info.places == Places::kInArena;
    any_in_process = any_in_process || info.places == Places::kInProcess;
    reach_arenas = reach_arenas && info.reaches_arenas != 0;
    reach_processes = reach_processes && info.reaches_processes != 0;
    if (r == 0) by_kernel = info.by_kernel != 0;
    if (r != rank_) learn(r, info, all);
  }
  const bool could_be =
      all_tell &&
      (any_in_process ? is_exchange_ && !any_in_arena && reach_processes : reach_arenas);
  may_choose_ = could_be && any_in_process && choice_ != nullptr;
  if (may_choose_) began_ = Clock::now();
  return could_be && (!any_in_process || by_kernel);
}

void ZeroCopy::learn(int rank, const BufferInfo& info, const Announced& all) const {
  PeerArenas& arenas = all.peers.arenas;
  PeerProcesses& processes = all.peers.processes;
  if (info.places == Places::kInArena && !arenas.has_learnt(rank)) {
    arenas.learn(rank, info.address());
  }
  if (info.places != Places::kInProcess || processes.has_learnt(rank)) return;
  for (std::size_t i = 0; i < num_inputs_[rank]; ++i) {
    const std::uint64_t address = place_of({rank, static_cast<int>(i)}, all);
    if (address == 0) continue;
    return processes.learn(rank, read_once(all.group.segment().state(rank).process), address);
  }
}

void ZeroCopy::done() {
  if (!may_choose_) return;
  choice_->took(std::chrono::duration<double>(Clock::now() - began_).count());
}

}  // namespace ringcomm::shm
