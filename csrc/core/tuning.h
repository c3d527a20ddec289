// What was measured on this machine: which algorithm is the fastest, by the size of a call.
//
// A group's first rank writes the rules into the group's memory, and all ranks go by what stands
// there, so that they choose alike whatever each of them has read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/algorithms.h"
#include "plan/collective.h"

namespace ringcomm {

// For calls of at most so many bytes, in groups of that many ranks on one host.
struct TunedRule {
  std::uint64_t most_nbytes;
  std::int32_t world_size;
  Collective collective;
  AlgorithmId algorithm;
};

// As many as a group of one size has.
inline constexpr std::size_t kMostTuned = 64;

// Those for groups of this size. Throws Error (kInvalidArgument) if they are more than a group has.
std::vector<TunedRule> tuned_for(int world_size, std::span<const TunedRule> rules);

class Tuning {
 public:
  Tuning() = default;
  // Leaves out what names no algorithm of its collective.
  explicit Tuning(std::span<const TunedRule> rules);

  // By the rule that allows the fewest bytes of those that allow so many; null without one.
  const AlgorithmId* find(Collective collective, std::uint64_t nbytes) const;

 private:
  std::array<std::vector<TunedRule>, kNumCollectives> rules_;  // ascending
};

}  // namespace ringcomm
