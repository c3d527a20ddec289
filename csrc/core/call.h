// A collective call as the ranks compare it with each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/status.h"
#include "plan/collective.h"
#include "reduce/types.h"

namespace ringcomm {

// A digest of a row of numbers: equal digests stand for equal numbers, to 64 bits of doubt. Each is
// mixed in by a multiplication and a shift, as MurmurHash's finalizer mixes: reversible, so that
// rows that differ in one number always differ in their digests.
class Digest {
 public:
  void add(std::uint64_t number) {
    value_ = (value_ ^ number) * 0xff51afd7ed558ccdu;
    value_ ^= value_ >> 32;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0x9e3779b97f4a7c15u;
};

struct Call {
  std::uint64_t sequence = 0;
  // Elements of `dtype`, of the tensor the collective is named after; of an all-to-all, those that
  // the rank sends, which may differ by rank.
  std::uint64_t count = 0;
  std::uint64_t layout = 0;  // digest of the per-rank counts where those may differ, or 0
  std::uint64_t plan = 0;    // Prepared::fingerprint, or Prepared::kNoProgram
  std::int32_t root = -1;    // -1: the collective has none
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t reduces = 0;    // whether op means anything
  std::uint8_t algorithm = 0;  // AlgorithmId, as chosen
  UsersDType users;            // what `dtype` and `count` stand for
  std::uint8_t eager = 0;      // all-to-all: the payload holds the data too; may differ by rank
  std::uint8_t refused = 0;    // the rank's arguments were wrong: nothing above means anything

  bool matches(const Call& other) const {
    const bool counts_agree = count == other.count || collective == Collective::kAllToAll;
    return !refused && !other.refused && counts_agree && layout == other.layout &&
           plan == other.plan && root == other.root && collective == other.collective &&
           dtype == other.dtype && users == other.users && op == other.op &&
           reduces == other.reduces && algorithm == other.algorithm;
  }
};

// Whether the bits of its results depend on the order in which the ranks' values are added.
inline bool has_rounded_sums(const Call& call) {
  return call.reduces && depends_on_association(call.dtype, call.op);
}

// The digest of all that matching calls have in common.
std::uint64_t digest_of(const Call& call);

// "all_reduce(count=256, dtype=float32, op=sum)"
std::string describe(const Call& call, const Members& members = {});

// "all_reduce(count=256, dtype=float32, op=sum) #17"
std::string describe_numbered(const Call& call, const Members& members = {});

// Whether any rank can have made it: of what was read from memory that others write.
bool is_valid(const Call& call);

// Groups ranks by what they called, and names those that disagree; calls[r] is rank r's, if it is
// known.
std::string describe_mismatch(const std::vector<std::optional<Call>>& calls,
                              const Members& members = {});

Call make_call(Collective collective, std::size_t count, const ElementType& type);

// Throws Error (kInvalidArgument) where the op is not defined for the dtype.
Call make_call(Collective collective, std::size_t count, const Reduce& reduce);

// Throws Error (kInvalidArgument) for a root outside of 0 ... world_size-1.
void set_root(Call& call, int root, int world_size);

template <typename Blocks>
std::uint64_t layout_of(const Blocks& blocks) {
  Digest digest;
  for (const auto& block : blocks) digest.add(block.count);
  return digest.value();
}

template <typename Blocks>
std::size_t total_count(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0},
                         [](std::size_t sum, const auto& block) { return sum + block.count; });
}

}  // namespace ringcomm
