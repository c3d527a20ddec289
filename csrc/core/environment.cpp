#include "core/environment.h"

#include <strings.h>

#include <algorithm>
#include <array>

namespace ringcomm {

bool is_switched_on(const char* name) {
  static constexpr std::array kOn = {"1", "true", "t", "yes", "y"};
  const char* value = value_of_variable(name);
  return value != nullptr && std::ranges::any_of(kOn, [value](const char* word) {
           return strcasecmp(value, word) == 0;
         });
}

}  // namespace ringcomm
