#include "core/device_board.h"

#include <algorithm>

namespace ringcomm {

std::vector<int> DeviceBoard::not_joined() {
  std::vector<int> ranks;
  for (int r = 0; r < group_.world_size; ++r) {
    if (!joined(r)) ranks.push_back(r);
  }
  return ranks;
}

DeviceBoard::Closing DeviceBoard::least_closed(const std::vector<int>& ranks) {
  Closing least = Closing::kHeld;
  for (const int r : ranks) least = std::min(least, closing(r));
  return least;
}

DeviceBoard::Closing DeviceBoard::most_closed(const std::vector<int>& ranks) {
  Closing most = Closing::kFree;
  for (const int r : ranks) most = std::max(most, closing(r));
  return most;
}

std::string DeviceBoard::describe_mismatch(std::uint64_t sequence) {
  std::vector<std::optional<Call>> calls;
  for (int r = 0; r < group_.world_size; ++r) calls.push_back(find(r, sequence));
  const std::optional<Call>& own = calls[group_.rank];
  const bool differs = std::any_of(calls.begin(), calls.end(), [&](const auto& theirs) {
    return own && theirs && !theirs->matches(*own);
  });
  return differs ? ringcomm::describe_mismatch(calls, group_.members) : "";
}

std::string DeviceBoard::describe_awaited(std::uint64_t sequence) {
  std::vector<int> absent, busy;
  std::string details;
  for (int r = 0; r < group_.world_size; ++r) {
    if (enqueued(r) < sequence) absent.push_back(r);
    if (completed(r) < sequence && r != group_.rank) busy.push_back(r);
  }
  const std::vector<int>& awaited = absent.empty() ? busy : absent;
  if (awaited.empty()) return "this rank's own device: all other ranks are done";
  for (const int r : awaited) {
    std::string how;
    details += std::string(details.empty() ? "" : "; ") + group_.members.name(r);
    if (group_.gone(r, &how)) {
      details += " (" + how + ")";
      continue;
    }
    details += " has enqueued #" + std::to_string(enqueued(r)) + " and completed #" +
               std::to_string(completed(r)) + " on its device";
  }
  return group_.members.names(awaited) + ": " + details;
}

}  // namespace ringcomm
