// Which algorithm carries out a call: the rules that were measured, the algorithms that a user has
// selected, and the outcome as people read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "plan/algorithms.h"
#include "plan/collective.h"
#include "plan/network.h"
#include "plan/plan.h"
#include "reduce/types.h"

namespace ringcomm {

// For calls of at most so many bytes, in groups of that many ranks on one host.
struct TunedRule {
  std::uint64_t most_nbytes;
  std::int32_t world_size;
  Collective collective;
  AlgorithmId algorithm;
};

// A group of one size has at most so many rules.
inline constexpr std::size_t kMostTuned = 64;

// Those for groups of this size. Throws Error (kInvalidArgument) if they are more than a group has.
std::vector<TunedRule> tuned_for(int world_size, std::span<const TunedRule> rules);

// What was measured on this machine: which algorithm is the fastest, by the size of a call.
//
// A group's first rank writes the rules into the group's memory, and all ranks use those, so that
// they choose alike whatever each of them has read.
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

// The plans of all ranks. They are a user's, so they are verified before they are used. May throw
// PlanError.
using PlanSource = std::function<std::vector<Plan>(int world_size, int root)>;

// Which algorithms a group has to use. It is the same on all ranks, except for `link`, `tuned` and
// `tuned_by`.
struct Selection {
  struct Choice {
    std::string name;
    PlanSource plans = nullptr;  // none: the name is in the table of algorithms
  };

  // What is not in here is chosen call by call.
  std::map<Collective, Choice> choices = {};
  std::vector<int> host_of = {};      // as in plan/algorithms.h
  Link link = {};                     // between hosts; rank 0's counts
  std::vector<TunedRule> tuned = {};  // on one host; for groups of any size
  std::string tuned_by = {};          // the file that holds these rules

  // The algorithm of this name for all collectives that have one, or "auto". Throws Error
  // (kInvalidArgument) if none has.
  static Selection named(std::string_view name);
};

enum class Path : std::uint8_t {
  kWithCall,  // the data is sent with the announcement of the call
  kByPlan,    // the algorithm's plan is carried out
};

// How calls of at most so many bytes, which belong to no smaller class, are carried out. People
// read it: RINGCOMM_DEBUG and `python -m ringcomm status` print it. The bytes are those of the
// larger of a rank's two buffers.
struct SizeClass {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  std::uint64_t most_nbytes;
  // From so many bytes on, calls of the collective copy nothing if the tensors of all ranks lie in
  // memory that they share, whatever the class says. kNoLimit: they always copy.
  std::uint64_t zero_copy_from;
  Collective collective;
  DType dtype;
  Path path;
  FixedText<37> algorithm;  // its name; empty with the call
};

// A group publishes at most so many size classes.
inline constexpr int kMostSizeClasses = 96;

}  // namespace ringcomm
