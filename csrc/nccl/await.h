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

// Waits until progress() is true, and throws Error when time is up, the group broken, or one of
// those that absent() names gone: the ranks that have not come so far. `doing`: "connecting ...".
void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<std::vector<int>()>& absent);

}  // namespace ringcomm::nccl
