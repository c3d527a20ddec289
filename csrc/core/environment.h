// Environment variables as they are read here and in Python (ringcomm/environment.py): an empty one
// counts as not set.
#pragma once

#include <cstdlib>

namespace ringcomm {

// Null if it is not set, or empty.
inline const char* value_of_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// Whether a switch is on. Words are as torch has them; what is none of them has been refused when
// the group was made.
bool is_switched_on(const char* name);

}  // namespace ringcomm
