// A part of an algorithm that has a name, for tables and pictures. All ranks have it in the same
// steps, and phases follow each other without a gap from the first step to the last.
#pragma once

#include <string_view>

namespace ringcomm {

struct Phase {
  std::string_view name;
  int num_steps = 0;

  bool operator==(const Phase&) const = default;
};

}  // namespace ringcomm
