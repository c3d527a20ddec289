#include "plan/collective.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "plan/plan.h"

namespace ringcomm {
namespace {

enum class Chunks { kAny, kPerRank, kSquare, kNone };
// Which rank a chunk belongs to: all, its owner, the root, or, in an all-to-all, the rank that it
// is for.
enum class Of { kAll, kOwner, kRoot, kReceiver };

// A row of the table in the header.
struct Terms {
  const char* name;
  Chunks chunks;
  Of before;         // which ranks hold a chunk
  Of after;          // which ranks are promised it
  Of contributions;  // and whose contributions it then holds
};

constexpr Terms kTerms[kNumCollectives] = {
    {"all_reduce", Chunks::kAny, Of::kAll, Of::kAll, Of::kAll},
    {"reduce_scatter", Chunks::kPerRank, Of::kAll, Of::kOwner, Of::kAll},
    {"reduce", Chunks::kAny, Of::kAll, Of::kRoot, Of::kAll},
    {"all_gather", Chunks::kPerRank, Of::kOwner, Of::kAll, Of::kOwner},
    {"gather", Chunks::kPerRank, Of::kOwner, Of::kRoot, Of::kOwner},
    {"scatter", Chunks::kPerRank, Of::kRoot, Of::kOwner, Of::kRoot},
    {"broadcast", Chunks::kAny, Of::kRoot, Of::kAll, Of::kRoot},
    {"all_to_all", Chunks::kSquare, Of::kOwner, Of::kReceiver, Of::kOwner},
    {"barrier", Chunks::kNone, Of::kAll, Of::kAll, Of::kAll},
};

const Terms& terms(Collective collective) {
  const auto number = static_cast<int>(collective);
  if (number < kNumCollectives) return kTerms[number];
  throw std::invalid_argument("no collective has the number " + std::to_string(number));
}

// What is wrong with a number of chunks, by what is wanted; an empty text if nothing is.
std::string wanted_chunks(Chunks chunks, int num_chunks, int world_size) {
  switch (chunks) {
    case Chunks::kAny:
      return num_chunks < 1 ? "at least one chunk" : "";
    case Chunks::kPerRank:
      return num_chunks < 1 || num_chunks % world_size != 0 ? "a multiple of world_size chunks"
                                                            : "";
    case Chunks::kSquare:
      return num_chunks % world_size != 0 || num_chunks / world_size != world_size
                 ? "world_size*world_size chunks"
                 : "";
    case Chunks::kNone:
      break;
  }
  return num_chunks != 0 ? "no chunks" : "";
}

}  // namespace

const char* to_string(Collective collective) { return terms(collective).name; }

bool is_reduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}

RankSet RankSet::range(int first, int last) {
  RankSet set;
  if (first < last) set.ranges_.push_back({first, last});
  return set;
}

std::uint64_t RankSet::hash() const {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t hash = ranges_.size();
  for (const Range& range : ranges_) {
    const auto first = static_cast<std::uint64_t>(range.first);
    hash = (hash ^ (first << 32 | static_cast<std::uint32_t>(range.last))) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

RankSet RankSet::united_with(const RankSet& other) const {
  RankSet result;
  result.ranges_.reserve(ranges_.size() + other.ranges_.size());
  auto append = [&](const Range& range) {
    if (result.ranges_.empty() || result.ranges_.back().last < range.first) {
      result.ranges_.push_back(range);
    } else {
      result.ranges_.back().last = std::max(result.ranges_.back().last, range.last);
    }
  };
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() || theirs != other.ranges_.end()) {
    const bool take_mine =
        theirs == other.ranges_.end() || (mine != ranges_.end() && mine->first <= theirs->first);
    append(take_mine ? *mine++ : *theirs++);
  }
  return result;
}

std::optional<int> RankSet::first_in_common(const RankSet& other) const {
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() && theirs != other.ranges_.end()) {
    const int first = std::max(mine->first, theirs->first);
    if (first < std::min(mine->last, theirs->last)) return first;
    mine->last < theirs->last ? ++mine : ++theirs;
  }
  return std::nullopt;
}

std::optional<int> RankSet::first_not_in(const RankSet& other) const {
  auto theirs = other.ranges_.begin();
  for (const Range& range : ranges_) {
    while (theirs != other.ranges_.end() && theirs->last <= range.first) ++theirs;
    if (theirs == other.ranges_.end() || range.first < theirs->first) return range.first;
    if (theirs->last < range.last) return theirs->last;
  }
  return std::nullopt;
}

std::string RankSet::to_string() const {
  if (ranges_.empty()) return "no rank";
  const bool one = ranges_.size() == 1 && ranges_[0].last == ranges_[0].first + 1;
  std::string text = one ? "rank " : "ranks ";
  for (const Range& range : ranges_) {
    if (&range != ranges_.data()) text += ", ";
    text += std::to_string(range.first);
    if (range.last > range.first + 1) text += "-" + std::to_string(range.last - 1);
  }
  return text;
}

Contract::Contract(Collective collective, int world_size, int num_chunks, int root)
    : collective_(collective), world_size_(world_size), num_chunks_(num_chunks), root_(root) {
  check_root(root, world_size);
  const std::string wanted = wanted_chunks(terms(collective).chunks, num_chunks, world_size);
  if (!wanted.empty()) {
    throw std::invalid_argument(std::string(to_string(collective)) + " takes " + wanted + ", got " +
                                std::to_string(num_chunks) + " chunks for a world_size of " +
                                std::to_string(world_size));
  }
}

bool Contract::holds_before(int rank, int chunk) const {
  const Of before = terms(collective_).before;
  return before == Of::kAll || rank == (before == Of::kRoot ? root_ : owner(chunk));
}

std::vector<int> Contract::promised_chunks(int rank) const {
  int first = 0, stride = 1, count = collective_ == Collective::kBarrier ? 1 : num_chunks_;
  switch (terms(collective_).after) {
    case Of::kAll:
      break;
    case Of::kOwner:
      count = num_chunks_ / world_size_;
      first = rank * count;
      break;
    case Of::kRoot:
      if (rank != root_) count = 0;
      break;
    case Of::kReceiver:
      first = rank;
      stride = world_size_;
      count = world_size_;
      break;
  }
  std::vector<int> chunks(count);
  for (int i = 0; i < count; ++i) chunks[i] = first + i * stride;
  return chunks;
}

bool Contract::promises(int rank, int chunk) const {
  switch (terms(collective_).after) {
    case Of::kAll:
      return true;
    case Of::kOwner:
      return owner(chunk) == rank;
    case Of::kRoot:
      return rank == root_;
    case Of::kReceiver:
      break;
  }
  return chunk % world_size_ == rank;
}

std::int64_t Contract::num_promised() const {
  const std::int64_t num_chunks = collective_ == Collective::kBarrier ? 1 : num_chunks_;
  return terms(collective_).after == Of::kAll ? num_chunks * world_size_ : num_chunks;
}

RankSet Contract::after(int chunk) const {
  const Of whose = terms(collective_).contributions;
  if (whose == Of::kAll) return RankSet::range(0, world_size_);
  return RankSet::single(whose == Of::kRoot ? root_ : owner(chunk));
}

}  // namespace ringcomm
