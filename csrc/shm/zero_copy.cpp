#include "shm/zero_copy.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "core/spans.h"
#include "reduce/host.h"
#include "shm/arena.h"
#include "shm/idle.h"

namespace ringcomm::shm {
namespace {

// Bytes. Of more memcpy takes that they do not fit into the caches, and writes around these.
constexpr std::size_t kCopiedAtOnce = 256 << 10;

constexpr std::size_t kAddress = 112;  // bytes of File::address, with a zero behind it

// What a rank announces; its places follow, each an offset in its arena.
struct Told {
  std::uint64_t reaches_all;  // whom it must reach
  char file[kAddress];        // empty: it tells no place
};

std::size_t nbytes_with(std::size_t num_places) {
  return sizeof(Told) + num_places * sizeof(std::uint64_t);
}

std::string file_of(const Told& told) { return {told.file, strnlen(told.file, sizeof(told.file))}; }

std::vector<int> held_by(const Contract& contract, int rank, int num_blocks) {
  std::vector<int> blocks;
  for (int b = 0; b < num_blocks; ++b) {
    if (contract.holds_before(rank, b)) blocks.push_back(b);
  }
  return blocks;
}

// The ranks whose contributions the block holds in the end.
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
    : rank_(rank), stores_(world_size) {
  const Contract contract(collective, world_size, num_blocks, root);
  const bool shares = collective == Collective::kAllReduce;
  std::vector<std::vector<int>> held;
  for (int r = 0; r < world_size; ++r) {
    held.push_back(held_by(contract, r, num_blocks));
    most_places_ = std::max(most_places_, held[r].size());
  }
  inputs_ = held[rank];
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

std::size_t ZeroCopy::most_nbytes() const { return nbytes_with(most_places_); }

std::size_t ZeroCopy::tell(const Chunks& blocks, std::size_t element_nbytes,
                           const PeerArenas& arenas, std::byte* payload) const {
  const Arena* const arena = Arena::existing();
  if (arena == nullptr && !inputs_.empty()) return 0;
  Told told{};
  told.reaches_all = std::ranges::all_of(reached_, [&](int r) { return arenas.knows(r); });
  std::byte* at = payload + sizeof(told);
  const auto tell_place = [&](const std::byte* data, std::size_t count) {
    std::optional<std::uint64_t> place = 0;
    if (count > 0) place = arena->find(data, count * element_nbytes);
    if (!place) return false;
    std::memcpy(at, &*place, sizeof(*place));
    at += sizeof(*place);
    return true;
  };
  for (const int b : inputs_) {
    if (!tell_place(blocks[b].input, blocks[b].count)) return 0;
  }
  for (const int b : outputs_) {
    if (!tell_place(blocks[b].output, blocks[b].count)) return 0;
  }
  if (!inputs_.empty()) {
    if (arena->file().size() >= sizeof(told.file)) return 0;
    std::memcpy(told.file, arena->file().data(), arena->file().size());
  }
  std::memcpy(payload, &told, sizeof(told));
  return static_cast<std::size_t>(at - payload);
}

// Everybody looks at what all have told, and so finds the same.
bool ZeroCopy::is_open(Exchange& exchange, std::size_t begin, PeerArenas& arenas) const {
  bool is_open = true;
  for (int r = 0; r < exchange.world_size(); ++r) {
    if (exchange.tells(r) == Tells::kInput) {
      is_open = false;
      continue;
    }
    const auto told = read_once(*reinterpret_cast<const Told*>(exchange.payload_of(r) + begin));
    if (told.reaches_all == 0) is_open = false;
    const bool is_new = told.file[0] != '\0' && !arenas.has_learnt(r);
    if (is_new && r != rank_) arenas.learn(r, file_of(told));
  }
  return is_open;
}

void ZeroCopy::run(const Chunks& blocks, const Reduction& reduction, Exchange& exchange,
                   std::size_t begin, const PeerArenas& arenas, Group& group, const Call& call,
                   const Deadline& deadline) {
  {
    const Span span(current_span_sink(), [] { return std::string("zero copy"); });
    for (const Task& task : tasks_) {
      perform(task, blocks, reduction, exchange, begin, arenas, group);
    }
  }
  await_others(group, call, deadline);
}

void ZeroCopy::perform(const Task& task, const Chunks& blocks, const Reduction& reduction,
                       Exchange& exchange, std::size_t begin, const PeerArenas& arenas,
                       Group& group) {
  const std::size_t element_nbytes = element_size(reduction.dtype);
  shares_.clear();
  divide(blocks[task.block], element_nbytes, task.num_shares, shares_);
  const Chunk& share = shares_[task.share];
  if (share.count == 0) return;
  const std::size_t nbytes = share.count * element_nbytes;
  std::size_t offset = 0;
  for (int s = 0; s < task.share; ++s) offset += shares_[s].count * element_nbytes;

  const auto reach = [&](const Place& place) {
    std::uint64_t at;
    std::memcpy(&at, exchange.payload_of(place.rank) + begin + nbytes_with(place.index),
                sizeof(at));
    std::byte* const found = arenas.at(place.rank, at + offset, nbytes);
    if (found != nullptr) return found;
    throw group.fail(ErrorKind::kSystem,
                     group.members.name(rank_) +
                         ": the shared memory of the group is damaged: the announcement of " +
                         group.members.name(place.rank) +
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
  } else if (share.output != sources_.front()) {
    const auto* const source = static_cast<const std::byte*>(sources_.front());
    for (std::size_t at = 0; at < nbytes; at += kCopiedAtOnce) {
      std::memcpy(share.output + at, source + at, std::min(kCopiedAtOnce, nbytes - at));
    }
  }
}

// In place of the executor's actions, one: see Progress.
void ZeroCopy::await_others(Group& group, const Call& call, const Deadline& deadline) {
  const std::uint64_t done = (call.sequence << kActionBits) + 1;
  group.segment().progress(rank_, 0).done.store(done, std::memory_order_release);
  const auto has_come = [&](int peer) {
    const std::uint64_t theirs =
        group.segment().progress(peer, 0).done.load(std::memory_order_acquire);
    return static_cast<std::int64_t>(theirs - done) >= 0;
  };
  Idle idle(group, deadline);
  for (const int peer : awaited_) {
    while (!has_come(peer)) {
      idle.pause([&] {
        Blocked blocked{{}, describe_numbered(call, group.members)};
        for (const int other : awaited_) {
          if (!has_come(other)) blocked.peers.push_back(other);
        }
        return blocked;
      });
    }
  }
}

}  // namespace ringcomm::shm
