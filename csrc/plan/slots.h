// How many slots an outbox must have, so that no order of execution can deadlock.
//
// Ranks carry out their actions in order. An action waits for the slices that it takes, and, if it
// publishes one, for a slot: with S slots, the j-th publication of a rank takes the slot of its
// (j-S)-th, and so waits until all readers of that have taken it. Nothing else is ever waited for.
//
// These waits make up a graph: an edge leads from each action to the one before it on its rank, to
// those whose slices it takes, and to those that must have read its slot. If the graph has no
// circle, then whatever the ranks have done so far, one of the actions that come next waits for
// nothing that is not done: all ranks come to their end, in any order of execution. If it has one,
// no action on it is ever carried out, in any order. So one execution stands for all, and the least
// number of slots is found by carrying the actions out without any data.
//
// What this leaves out does no harm:
//   - Chunks without elements in a round are skipped. The publications that remain wait for no more
//     than they did: that of place j for readers of a publication at or before j-S.
//   - Rounds follow each other in the same slots. What the next round waits for in this one does
//     not depend on the next.
//
// With as many slots as a rank publishes slices, nothing waits for a slot. Then plans that verify()
// accepts come to their end: see the proof there, and note that a rank publishes what it sends in a
// step before it receives anything in it.
#pragma once

#include <functional>

#include "plan/wiring.h"

namespace ringcomm {

// Carries out all actions, in one of the possible orders, and calls on_done for each. False:
// deadlock.
bool carry_out(const Wiring& wiring, int num_slots, const std::function<void(int action)>& on_done);

// The least number of slots with which all actions can be carried out; 0 if nothing is sent. Throws
// PlanError if they cannot with any.
int least_slots(const Wiring& wiring);

}  // namespace ringcomm
