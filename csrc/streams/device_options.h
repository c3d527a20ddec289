// What a group's part on a device is told. What it holds at first is the default, here and nowhere
// else.
#pragma once

#include "core/selection.h"
#include "streams/layout.h"

namespace ringcomm::streams {

struct DeviceOptions {
  Selection selection = {};
  Layout layout;
  int max_ctas = 32;    // of one rank, in all its channels: few, so that sums have room
  bool graphs = false;  // see nccl/replays.h
};

}  // namespace ringcomm::streams
