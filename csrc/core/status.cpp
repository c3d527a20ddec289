#include "core/status.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace ringcomm {

std::string describe_seconds(double seconds) {
  struct Unit {
    const char* name;
    double seconds;
  };
  constexpr Unit kUnits[] = {{"h", 3600}, {"min", 60}, {"s", 1}};
  const Unit* unit = std::find_if(std::begin(kUnits), std::end(kUnits) - 1,
                                  [&](const Unit& u) { return seconds >= 2 * u.seconds; });
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g %s", seconds / unit->seconds, unit->name);
  return text;
}

}  // namespace ringcomm
