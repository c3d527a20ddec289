// What each collective starts from and what it promises, in terms of whose contributions a chunk
// holds.
//
//                    chunks        before                       after
//    all-reduce      any           every chunk, own             every chunk, all ranks
//    reduce-scatter  k per rank    every chunk, own             own chunks, all ranks
//    reduce          any           every chunk, own             on the root every chunk, all ranks
//    all-gather      k per rank    own chunks, own              every chunk, its owner
//    gather          k per rank    own chunks, own              on the root every chunk, its owner
//    scatter         k per rank    on the root every chunk      own chunks, the root
//    broadcast       any           on the root every chunk      every chunk, the root
//    all-to-all      n*n           chunks r*n+j on rank r       on rank r chunks i*n+r, rank i
//    barrier         none          each rank knows of itself    each rank knows of all
//
// With k chunks per rank, rank r owns chunks r*k, ..., r*k + k-1. What is not listed is unspecified
// before (a plan may not read it) and after (a plan may leave anything there).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringcomm {

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
};
inline constexpr int kNumCollectives = 9;

const char* to_string(Collective collective);

// Whether it combines the ranks' contributions, instead of only moving them.
bool is_reduction(Collective collective);

// A set of ranks, as sorted, disjoint, non-adjacent ranges. Sums along a ring or within a host are
// one or two ranges however many ranks they span.
class RankSet {
 public:
  RankSet() = default;

  // The ranks first, ..., last-1.
  static RankSet range(int first, int last);
  static RankSet single(int rank) { return range(rank, rank + 1); }

  bool empty() const { return ranges_.empty(); }
  std::size_t num_ranges() const { return ranges_.size(); }
  std::uint64_t hash() const;
  RankSet united_with(const RankSet& other) const;

  // The lowest rank in both sets; the lowest rank in this set and not in the other.
  std::optional<int> first_in_common(const RankSet& other) const;
  std::optional<int> first_not_in(const RankSet& other) const;

  // For example "ranks 0-3, 6"; "no rank".
  std::string to_string() const;

  bool operator==(const RankSet&) const = default;

 private:
  struct Range {
    int first;
    int last;  // one past the end

    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges_;
};

// One collective among world_size ranks on a buffer of num_chunks chunks. A barrier is treated as
// having one chunk, which holds the ranks known to have arrived.
class Contract {
 public:
  // Throws std::invalid_argument for a world_size below 1, a root outside of 0 ... world_size-1 and
  // a num_chunks that the table does not allow.
  Contract(Collective collective, int world_size, int num_chunks, int root);

  Collective collective() const { return collective_; }
  int world_size() const { return world_size_; }
  int num_chunks() const { return num_chunks_; }
  bool holds_before(int rank, int chunk) const;

  // The chunks whose contents are promised to this rank, and whose contributions they then hold.
  std::vector<int> promised_chunks(int rank) const;
  bool promises(int rank, int chunk) const;
  // How many they are of all ranks together.
  std::int64_t num_promised() const;
  RankSet after(int chunk) const;

 private:
  int owner(int chunk) const { return chunk / (num_chunks_ / world_size_); }

  Collective collective_;
  int world_size_;
  int num_chunks_;
  int root_;
};

}  // namespace ringcomm
