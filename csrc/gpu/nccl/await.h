// Waiting on the host for what NCCL does in the background, without ever waiting for a rank that
// will not come.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/group.h"

namespace ringcomm::nccl {

// How often the host looks at what the GPU or NCCL does.
inline constexpr std::chrono::milliseconds kPollEvery{1};

// The ranks that are waited for.
struct Awaited {
  std::vector<int> absent;  // they have not come so far
  std::vector<int> busy;    // they have come, and are not done
};

// Waits until progress() is true, and throws Error when time is up, the group broken, or one of
// those that awaited() names gone. `doing`: "connecting ...".
void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<Awaited()>& awaited);

}  // namespace ringcomm::nccl
