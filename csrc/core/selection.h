// What is known of a group's algorithms before any call: those that a user has selected, and the
// rules that were measured on its machine.
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

#include "plan/algorithms.h"
#include "plan/collective.h"
#include "plan/network.h"
#include "plan/plan.h"

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

// What the bits of sums of floats depend on, as a user promises it to others.
enum class Reproducible : std::uint8_t {
  kOff,    // also on what was chosen
  kRanks,  // on the ranks' values: plans add neighbours, then neighbouring pairs (reduce/types.h)
  kWorld,  // the same; Python adds parts of ranks so that these do not matter either
};

// "off", "ranks" or "world"
const char* to_string(Reproducible reproducible);
// Throws Error (kInvalidArgument) for any other name.
Reproducible reproducible_named(std::string_view name);

// In place of an algorithm's id: what the selection brings of its own.
inline constexpr AlgorithmId kUsersPlans = 255;

// Which algorithms a group has to use. It is the same on all ranks, except for `link`, `tuned` and
// `tuned_by`.
struct Selection {
  struct Choice {
    std::string name;
    PlanSource plans = nullptr;  // none: the name is in the table of algorithms
  };
  using Choices = std::map<Collective, Choice>;

  // What is not in here is chosen call by call.
  Choices choices = {};
  Reproducible reproducible = Reproducible::kOff;
  std::vector<int> host_of = {};      // as in plan/algorithms.h
  Link link = {};                     // between hosts; rank 0's counts
  std::vector<TunedRule> tuned = {};  // on one host; for groups of any size
  std::string tuned_by = {};          // the file that holds these rules

  // The algorithm of this name for all collectives that have one, or "auto". Throws Error
  // (kInvalidArgument) if none has.
  static Selection named(std::string_view name);
};

// What an algorithm is called, among those of the table and those that a user brings.
std::string name_of(const Selection::Choices& choices, Collective collective,
                    AlgorithmId algorithm);

}  // namespace ringcomm
