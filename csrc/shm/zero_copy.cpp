#include "shm/zero_copy.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <system_error>

#include "core/spans.h"
#include "reduce/host.h"
#include "shm/backoff.h"

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

}  // namespace ringcomm::shm
