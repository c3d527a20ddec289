// Going on without the dead: the living ranks of a group agree on which they are, and make a new
// one.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "setup/store.h"
#include "shm/group.h"

namespace ringcomm::shm {

struct Survivors {
  std::vector<int> ranks;  // in the old group, ascending: their order in the new one
  std::string key;         // the same for all of them, and used for nothing else: to meet by
};

struct ShrinkCall {
  std::vector<int> excluded;  // living or dead, ascending; they do not call
  // The excluded are all that may be missing: a dead rank that is not among them is an error.
  bool exact = false;
  std::chrono::milliseconds timeout;
};

// Makes this rank's part of a new group of `survivors`. It may wait for them, and calls `watch` all
// the while, at least every few milliseconds: that throws when the new group has become useless.
using MakeGroup =
    std::function<void(const Survivors& survivors, const std::function<void()>& watch)>;

// All ranks that live and are not excluded call it. Every one of them returns the same survivors,
// and its last call of `make` has succeeded with these; or it throws:
//
//   kTimeout   living ranks that did not come in time, by name
//   kMismatch  another rank's call names other ranks to exclude
//   kPeerDied  with `exact`, a rank that is dead and not excluded
//   kClosed    this rank has left the group, or the others have gone on without it
//   kSystem    the store fails
//   whatever `make` throws when no rank died
//
// What one rank gives up for is thrown by all. After it threw, it can be called again.
//
// The ranks agree in `store`, the one in which the group has met; two keys remain there of a round,
// or one more for each host if there are several. The old group need not work any more, but for its
// memory.
Survivors shrink(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make);

// This rank raises `error` before it can call shrink. The other ranks' calls raise it, too.
void decline_to_shrink(Group& group, Store& store, const ShrinkCall& call,
                       const std::exception_ptr& error) noexcept;

}  // namespace ringcomm::shm
