// Groups of any size for algorithms that want a power of two.
//
// The core, p = 2^floor(log2 n) of the n ranks, carries the algorithm out. Each of the other n-p
// ranks is folded into a core rank beside it: it hands its data to that rank before, and gets the
// result from it after. For 6 ranks, two of which are folded:
//
//      rank           0 <-- 1      2 <-- 3      4      5
//      place          0            1            2      3        in the core of four
//
// Ranks 2v+1 are folded into ranks 2v for v < n-p, and places go up with ranks: at place v stands
// rank v + min(v, n-p). So the ranks that stand at, or are folded into, consecutive places are
// consecutive, and so are the chunks that they own.
#pragma once

#include <bit>
#include <functional>

#include "plan/plan.h"

namespace ringcomm {

struct ChunkRange {
  int first_chunk;
  int num_chunks;
};

class Fold {
 public:
  explicit Fold(int world_size)
      : core_size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(world_size)))),
        num_folded_(world_size - core_size_) {}

  int core_size() const { return core_size_; }
  int log2_core_size() const { return std::countr_zero(static_cast<unsigned>(core_size_)); }
  bool is_folded(int rank) const { return rank < 2 * num_folded_ && rank % 2 == 1; }

  // The place of a core rank, and the rank of a place. rank_at(core_size()) is the world size.
  int place(int rank) const { return rank < 2 * num_folded_ ? rank / 2 : rank - num_folded_; }
  int rank_at(int place) const { return place < num_folded_ ? 2 * place : place + num_folded_; }

  using ChunksOf = std::function<std::vector<ChunkRange>(int folded_rank)>;

  // One step in which every folded rank hands chunks_of(it) to the rank that it is folded into, and
  // one in which it gets them from there; no step if no rank is folded.
  Plan in(int rank, int num_chunks, const ChunksOf& chunks_of, bool reduce) const {
    return hand_over(rank, num_chunks, chunks_of, &Step::sends, &Step::recvs, reduce);
  }
  Plan out(int rank, int num_chunks, const ChunksOf& chunks_of) const {
    return hand_over(rank, num_chunks, chunks_of, &Step::recvs, &Step::sends, /*reduce=*/false);
  }

  // Those of the core, with in() before and out() after them.
  std::vector<Phase> phases(std::vector<Phase> of_core) const {
    if (num_folded_ == 0) return of_core;
    of_core.insert(of_core.begin(), {"fold in", 1});
    of_core.push_back({"fold out", 1});
    return of_core;
  }

 private:
  using Transfers = std::vector<Transfer> Step::*;

  // Between the folded ranks and those that they are folded into.
  Plan hand_over(int rank, int num_chunks, const ChunksOf& chunks_of, Transfers at_folded,
                 Transfers at_core, bool reduce) const {
    Plan plan{.num_chunks = num_chunks, .steps = {}};
    if (num_folded_ == 0) return plan;
    Step& step = plan.steps.emplace_back();
    const auto add = [&](Transfers transfers, int folded_rank, int peer, bool adds) {
      for (const ChunkRange& range : chunks_of(folded_rank)) {
        (step.*transfers).push_back({peer, range.first_chunk, range.num_chunks, adds});
      }
    };
    if (is_folded(rank)) {
      add(at_folded, rank, rank - 1, /*adds=*/false);
    } else if (is_folded(rank + 1)) {
      add(at_core, rank + 1, rank + 1, reduce);
    }
    return plan;
  }

  int core_size_ = 1;
  int num_folded_ = 0;
};

}  // namespace ringcomm
