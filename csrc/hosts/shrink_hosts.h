// Going on without the dead in a group that spans hosts.
//
// No memory reaches all living ranks, and the links of a host end with its leader. What does reach
// them is the store in which the group has met, and a rank that cannot reach that cannot make a new
// group. So they agree there. A decision is a key that can be set only once, so that a rank that
// comes too late, dies or believes something else changes nothing. Rounds are numbered, and in
// round k, under "shrink/NAME/k/":
//
//   notices/H   host H    what its ranks know (hosts/membership_report.h); any of them writes
//                         it from their memory, one at a time, twice a second and when something
//                         has changed
//   survivors   once      some ranks that have joined
//   verdict     once      made: they have a new group, and no other round begins
//                         again: one of them died before; the next round begins
//                         R, why: rank R has given up; all that are in the round raise that
//   absent      once      likewise, written in the round before: a rank that comes later waits
//                         for R no longer than a second
//
// A rank
//
//   1. joins                  state.shrink.joined = k + 1, in its host's memory
//   2. gathers                until every rank that is not excluded has joined or is gone. Then it
//                             proposes the largest partition of ranks that receive from each
//                             other, if its host belongs to that
//   3. makes the new group    if it is one of the survivors
//   4. votes                  state.shrink.built = k + 1, likewise
//   5. ends the round         if the reports say that all survivors have voted: made; if one is
//                             gone and has not: again
//
// Invariant: there is at most one set of survivors that has a new group. A round has one verdict
// and one set of survivors, as the store keeps one; "made" takes the votes of all of them; and the
// next round begins with "again" or if a rank gave up.
//
// Which ranks are gone: a rank can be certain about those of its own host. For another host, its
// report counts. If it has none, the hosts that listen report: their heartbeats know
// (hosts/heartbeat.h) whether anything came from it in the last seconds, be it that its leader has
// died or that it is cut off. So if a leader has died, the other ranks of its host have those
// seconds to join.
//
// Two parts that are cut off from each other both reach the store, or one does. In the first case
// both see by the reports which part is to go on, and the other one waits for the verdict: a silent
// host has two seconds to appear there. In the second case one goes on, and the other raises that
// the store does not answer. If what they see differs, the first to propose goes on.
//
// Why no rank hangs: a rank that waits too long gives up, and so ends the round, or finds that the
// group was made after all. One that is not among the survivors leaves the round to them.
#pragma once

#include "shm/shrink.h"

namespace ringcomm::hosts {

// As shm::shrink.
Survivors shrink_hosts(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make);

// As shm::decline_to_shrink; throws if the store fails.
void decline_to_shrink_hosts(Group& group, Store& store, const ShrinkCall& call,
                             const std::exception_ptr& error);

}  // namespace ringcomm::hosts
