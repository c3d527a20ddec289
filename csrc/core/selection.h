// Which algorithms a group has been told to use.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/tuning.h"
#include "plan/collective.h"
#include "plan/network.h"
#include "plan/plan.h"

namespace ringcomm {

// The plans of all ranks. They are a user's, so they are verified before they are used. May throw
// PlanError.
using PlanSource = std::function<std::vector<Plan>(int world_size, int root)>;

// The same on all ranks, but for `across`, `tuned` and `tuned_by`.
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

}  // namespace ringcomm
