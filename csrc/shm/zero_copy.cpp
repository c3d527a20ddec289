#include "shm/zero_copy.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <system_error>

#include "core/policy.h"
#include "core/spans.h"
#include "reduce/host.h"
#include "shm/arena.h"
#include "shm/backoff.h"
#include "shm/layout.h"

namespace ringcomm::shm {
namespace {

// Bytes. For more, memcpy assumes that they do not fit into the caches, and writes around these.
constexpr std::size_t kCopiedAtOnce = 256 << 10;

// Bytes. The kernel copies no more at once, so that a rank that waits for it notices what breaks
// the group.
constexpr std::size_t kTakenAtOnce = 4 << 20;

std::vector<int> held_by(const Contract& contract, int rank, int num_blocks) {
  std::vector<int> blocks;
  for (int b = 0; b < num_blocks; ++b) {
    if (contract.holds_before(rank, b)) blocks.push_back(b);
  }
  return blocks;
}

// The ranks that have contributed to the block in the end.
std::vector<int> contributors(const Contract& contract, int block, int world_size) {
  std::vector<int> ranks;
  const RankSet all = contract.after(block);
  const auto next = [&](int first) {
    return all.first_in_common(RankSet::range(first, world_size));
  };
  for (auto r = next(0); r; r = next(*r + 1)) ranks.push_back(*r);
  return ranks;
}

int index_in(const std::vector<int>& blocks, int block) {
  return static_cast<int>(std::ranges::find(blocks, block) - blocks.begin());
}

}  // namespace

// Only an all-reduce promises sums to many: all its blocks to all ranks.
ZeroCopy::ZeroCopy(Collective collective, int world_size, int num_blocks, int root, int rank)
    : rank_(rank),
      is_exchange_(collective == Collective::kAllToAll),
      places_(world_size),
      stores_(world_size) {
  const Contract contract(collective, world_size, num_blocks, root);
  const bool shares = collective == Collective::kAllReduce;
  std::vector<std::vector<int>> held;
  for (int r = 0; r < world_size; ++r) {
    held.push_back(held_by(contract, r, num_blocks));
    num_inputs_.push_back(held[r].size());
    most_places_ = std::max(most_places_, held[r].size());
  }
  inputs_ = held[rank];
  readable_.resize(inputs_.size());
  if (shares) {
    outputs_ = contract.promised_chunks(rank);
    most_places_ += outputs_.size();
  }
  std::vector<std::vector<int>> from;
  for (int b = 0; b < num_blocks; ++b) from.push_back(contributors(contract, b, world_size));
  std::set<int> reached, awaited;
  for (int r = 0; r < world_size; ++r) {
    for (const int block : contract.promised_chunks(r)) {
      if (r == rank) reached.insert(from[block].begin(), from[block].end());
      if (std::ranges::binary_search(from[block], rank)) awaited.insert(r);
    }
  }
  reached.erase(rank);
  awaited.erase(rank);
  reached_.assign(reached.begin(), reached.end());
  awaited_.assign(awaited.begin(), awaited.end());
  for (const int block : contract.promised_chunks(rank)) {
    Task& task = tasks_.emplace_back(block, shares ? rank : 0, shares ? world_size : 1);
    for (const int r : from[block]) {
      task.inputs.push_back({r, index_in(held[r], block)});
      if (!shares || r == rank) continue;
      const auto behind = static_cast<int>(held[r].size());
      task.outputs.push_back({r, behind + index_in(outputs_, block)});
    }
  }
  // Not all read from one rank first.
  if (tasks_.size() == static_cast<std::size_t>(world_size)) {
    std::ranges::rotate(tasks_, tasks_.begin() + rank);
  }
}

void ZeroCopy::run(const Chunks& blocks, const Reduction& reduction, const Announced& all,
                   const Call& call, const Deadline& deadline) {
  {
    const Span span(current_span_sink(), [&] {
      const bool takes = std::ranges::find(places_, Places::kInProcess) != places_.end();
      return std::string(takes ? "one copy" : "zero copy");
    });
    for (const Task& task : tasks_) perform(task, blocks, reduction, all, call, deadline);
  }
  await_others(all.group, call, deadline);
}

void ZeroCopy::perform(const Task& task, const Chunks& blocks, const Reduction& reduction,
                       const Announced& all, const Call& call, const Deadline& deadline) {
  const std::size_t element_nbytes = element_size(reduction.dtype);
  shares_.clear();
  divide(blocks[task.block], element_nbytes, task.num_shares, shares_);
  const Chunk& share = shares_[task.share];
  if (share.count == 0) return;
  const std::size_t nbytes = share.count * element_nbytes;
  const Place& first = task.inputs.front();
  if (first.rank != rank_ && places_[first.rank] == Places::kInProcess) {
    return take(first, share.output, nbytes, all, call, deadline);
  }
  std::size_t offset = 0;
  for (int s = 0; s < task.share; ++s) offset += shares_[s].count * element_nbytes;

  const auto reach = [&](const Place& place) {
    std::byte* const found = all.peers.arenas.at(place.rank, place_of(place, all) + offset, nbytes);
    if (found != nullptr) return found;
    throw all.group.fail(ErrorKind::kSystem,
                         all.group.members.name(rank_) +
                             ": the shared memory of the group is damaged: the announcement of " +
                             all.group.members.name(place.rank) +
                             " tells a place that is not in its memory");
  };
  sources_.clear();
  for (const Place& place : task.inputs) {
    sources_.push_back(place.rank == rank_ ? share.input : reach(place));
  }
  copies_.clear();
  for (const Place& place : task.outputs) {
    copies_.push_back({reach(place), &stores_[place.rank]});
  }
  if (sources_.size() > 1) {
    reduce_host(reduction, sources_.data(), static_cast<int>(sources_.size()), share.output,
                copies_, share.count);
  } else if (taken_ >= kLeastStreamed) {
    copy_host(sources_.front(), share.output, {}, nbytes, Pass::kStreaming);
  } else if (share.output != sources_.front()) {
    const auto* const source = static_cast<const std::byte*>(sources_.front());
    for (std::size_t at = 0; at < nbytes; at += kCopiedAtOnce) {
      std::memcpy(share.output + at, source + at, std::min(kCopiedAtOnce, nbytes - at));
    }
  }
}

// A rank that has left a broken group may have freed its tensors, and a process that ends loses
// them before others can see that it has ended.
void ZeroCopy::take(const Place& from, std::byte* output, std::size_t nbytes, const Announced& all,
                    const Call& call, const Deadline& deadline) {
  Group& group = all.group;
  const auto doing = [&] { return describe_numbered(call, group.members); };
  const std::uint64_t address = place_of(from, all);
  for (std::size_t at = 0; at < nbytes; at += kTakenAtOnce) {
    const std::size_t part = std::min(kTakenAtOnce, nbytes - at);
    const int error = all.peers.processes.read(from.rank, address + at, output + at, part);
    if (group.broken()) group.check(doing());
    if (error == 0) continue;
    Backoff idle(group, deadline);
    while (error == ESRCH) idle.pause([&] { return WaitInfo{{from.rank}, doing()}; });
    throw group.fail(ErrorKind::kSystem, group.members.name(rank_) + " in " + doing() +
                                             ": process_vm_readv of " + std::to_string(part) +
                                             " bytes of " + group.members.name(from.rank) + ": " +
                                             std::generic_category().message(error));
  }
}

// In place of the executor's actions, one: see Progress.
void ZeroCopy::await_others(Group& group, const Call& call, const Deadline& deadline) {
  const std::uint64_t done = (call.sequence << kActionBits) + 1;
  group.segment().progress(rank_, 0).done.store(done, std::memory_order_release);
  group.ring();
  const auto has_come = [&](int peer) {
    const std::uint64_t theirs =
        group.segment().progress(peer, 0).done.load(std::memory_order_acquire);
    return static_cast<std::int64_t>(theirs - done) >= 0;
  };
  Backoff idle(group, deadline);
  for (const int peer : awaited_) {
    while (!has_come(peer)) {
      idle.pause([&] {
        WaitInfo blocked{{}, describe_numbered(call, group.members)};
        for (const int other : awaited_) {
          if (!has_come(other)) blocked.peers.push_back(other);
        }
        return blocked;
      });
    }
  }
}

// ---- What ranks publish about their tensors -----------------------------------------------------

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
