#include "core/selection.h"

#include <algorithm>

#include "core/status.h"
#include "plan/algorithms.h"

namespace ringcomm {

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

}  // namespace ringcomm
