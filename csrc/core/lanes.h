// How lanes carry out a program, whatever the memory: shm/executor.h on a host's, gpu/fused/lane.h
// on devices'.
//
// Round b of a program moves slice b of every chunk; lane l carries out the rounds l, l + L, l +
// 2L, ... of L lanes, and in each of them the actions of its rank's program in their order. A rank
// counts, lane by lane, how many it has done, and that is all that its peers need to know: a rank
// that needs a slice waits for the action that publishes it, and a rank that writes to a slot again
// waits for those that take what was in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/host_device.h"

namespace ringcomm {

// An action of a program in a round of it.
struct Turn {
  int action;
  std::size_t round;
};

// How many actions a rank that has `num_actions` of them in each round has done in a lane of
// `num_lanes` when `turn` is the last.
RINGCOMM_HOST_DEVICE std::uint64_t done_with(Turn turn, std::size_t num_lanes,
                                             std::size_t num_actions) {
  return turn.round / num_lanes * num_actions + turn.action + 1;
}

// Goes back to the turn that last wrote to the slot of this one; at the latest that is the same
// action, in the lane's round before. False: none has, in this call. replaces(action) is
// Action::replaces, has_slice(action, round) whether its chunk has that slice: without, nothing is
// written.
template <typename Replaces, typename HasSlice>
RINGCOMM_HOST_DEVICE bool go_back_in_slot(Turn& turn, std::size_t num_lanes,
                                          const Replaces& replaces, const HasSlice& has_slice) {
  do {
    const int last = turn.action;
    turn.action = replaces(last);
    if (turn.action < last) continue;
    if (turn.round < num_lanes) return false;
    turn.round -= num_lanes;
  } while (!has_slice(turn.action, turn.round));
  return true;
}

}  // namespace ringcomm
