#include "core/selection.h"

#include <algorithm>
#include <string>

#include "core/status.h"
#include "plan/algorithms.h"

namespace ringcomm {

std::vector<TunedRule> tuned_for(int world_size, std::span<const TunedRule> rules) {
  std::vector<TunedRule> chosen;
  for (const TunedRule& rule : rules) {
    if (rule.world_size == world_size) chosen.push_back(rule);
  }
  if (chosen.size() > kMostTuned) {
    throw Error(ErrorKind::kInvalidArgument,
                "the tuning has " + std::to_string(chosen.size()) + " rules for groups of " +
                    std::to_string(world_size) + " ranks; they may have " +
                    std::to_string(kMostTuned));
  }
  return chosen;
}

Tuning::Tuning(std::span<const TunedRule> rules) {
  for (const TunedRule& rule : rules) {
    const bool names_one = rule.algorithm < algorithms().size() &&
                           algorithms()[rule.algorithm].collective == rule.collective;
    if (names_one) rules_.at(static_cast<std::size_t>(rule.collective)).push_back(rule);
  }
  for (std::vector<TunedRule>& of_one : rules_) {
    std::ranges::sort(of_one, {}, &TunedRule::most_nbytes);
  }
}

const AlgorithmId* Tuning::find(Collective collective, std::uint64_t nbytes) const {
  const std::vector<TunedRule>& rules = rules_[static_cast<std::size_t>(collective)];
  const auto found = std::ranges::lower_bound(rules, nbytes, {}, &TunedRule::most_nbytes);
  return found == rules.end() ? nullptr : &found->algorithm;
}

Selection Selection::named(std::string_view name) {
  Selection selection;
  if (name == "auto") return selection;
  std::vector<std::string_view> names{"auto"};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == name) selection.choices[algorithm.collective] = {std::string(name)};
    if (std::ranges::find(names, algorithm.name) == names.end()) names.push_back(algorithm.name);
  }
  if (selection.choices.empty()) {
    std::string text = "algorithm is \"" + std::string(name) + "\"; it must be one of";
    for (const std::string_view each : names) text += " " + std::string(each);
    throw Error(ErrorKind::kInvalidArgument, text);
  }
  return selection;
}

namespace {

constexpr std::array kReproducible = {"off", "ranks", "world"};  // by number

}  // namespace

const char* to_string(Reproducible reproducible) {
  return kReproducible[static_cast<std::size_t>(reproducible)];
}

Reproducible reproducible_named(std::string_view name) {
  const auto found = std::ranges::find(kReproducible, name);
  if (found == kReproducible.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "reproducible is \"" + std::string(name) + "\"; it must be off, ranks or world");
  }
  return static_cast<Reproducible>(found - kReproducible.begin());
}

std::string name_of(const Selection::Choices& choices, Collective collective,
                    AlgorithmId algorithm) {
  return algorithm == kUsersPlans ? choices.at(collective).name
                                  : std::string(algorithms()[algorithm].name);
}

}  // namespace ringcomm
