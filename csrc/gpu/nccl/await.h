// Waiting on the host for what NCCL does in the background. The wait ends if a rank that it needs
// is gone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/group.h"

namespace ringcomm::nccl {

// The ranks that a wait needs.
struct Awaited {
  std::vector<int> absent;  // they have not begun
  std::vector<int> busy;    // they have begun, and are not done
};

// Waits until progress() is true. Throws Error when the time is up, when the group is broken, or
// when a rank that awaited() names is gone. `doing`: "connecting ...".
void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<Awaited()>& awaited);

}  // namespace ringcomm::nccl
