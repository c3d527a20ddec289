// What those who control a lane tell those who move its data: one step.
#pragma once

#include "reduce/device_arguments.h"

namespace ringcomm::fused {

struct WorkItem {
  DeviceArguments arguments;
  bool moves;  // the bits of the one input, whatever the type
  bool ends;   // no step is left
};

// One is carried out while the next is written.
inline constexpr int kWorkItems = 2;

}  // namespace ringcomm::fused
