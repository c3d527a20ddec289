// Going on without the dead: the living ranks of a group agree on who they are, and make a new one.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "shm/group.h"

namespace ringcomm::shm {

struct Survivors {
  std::vector<int> ranks;  // in the old group, ascending: their order in the new one
  std::string key;         // the same for all of them, and used for nothing else: to meet by
};

// Makes this rank's part of a new group of `survivors`. It may wait for them, and calls `watch` all
// the while, at least every few milliseconds: that throws when it is of no use any more.
using MakeGroup =
    std::function<void(const Survivors& survivors, const std::function<void()>& watch)>;

struct ShrinkCall {
  std::vector<int> excluded;  // living or dead, ascending; they do not call
  // The excluded are all that may be missing: a dead rank that is not among them is an error.
  bool exact = false;
  std::chrono::milliseconds timeout;
};

// All ranks call it that live and are not excluded. Every one of them returns the same survivors,
// with whom its last call of `make` has succeeded; or throws:
//
//   kTimeout   living ranks that did not come in time, by name
//   kMismatch  another rank's call names other ranks to exclude; a rank gave up
//   kPeerDied  with `exact`, a rank that is dead and not excluded
//   kClosed    this rank has left the group, or the others have gone on without it
//   kSystem    the store fails
//   whatever `make` throws when nobody died
//
// After it threw, it can be called again. The old group need not work any more, but for its memory;
// where it spans hosts the ranks agree in `store` (shm/shrink_hosts.h), the one in which it has
// met. There, what one rank gives up for is thrown by all.
Survivors shrink(Group& group, Store& store, const ShrinkCall& call, const MakeGroup& make);

// This rank raises `error` before it can call shrink. The other ranks' calls raise it, too.
void decline_to_shrink(Group& group, Store& store, const ShrinkCall& call,
                       const std::exception_ptr& error) noexcept;

}  // namespace ringcomm::shm
