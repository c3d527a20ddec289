#include "shm/shrink_caller.h"

#include <algorithm>
#include <random>

#include "core/digest.h"

namespace ringcomm::shm {

std::uint64_t ShrinkCaller::digest() const {
  Digest digest;
  digest.add(call_.exact ? 1 : 0);
  for (const int r : call_.excluded) digest.add(static_cast<std::uint64_t>(r));
  return digest.value();
}

bool ShrinkCaller::excludes(int rank) const {
  return std::ranges::binary_search(call_.excluded, rank);
}

std::string ShrinkCaller::who() const {
  return group_.members.name(group_.rank) + " in shrink" +
         (call_.excluded.empty() ? "" : " without " + names(call_.excluded));
}

Error ShrinkCaller::error(ErrorKind kind, const std::string& why) const {
  return {kind, who() + ": " + why};
}

Error ShrinkCaller::late(const std::string& waiting_for) const {
  return {ErrorKind::kTimeout, who() + ": Timed out after " + describe_seconds(deadline_.waited()) +
                                   " (its timeout is " +
                                   describe_seconds(call_.timeout.count() / 1e3) +
                                   "), waiting for " + waiting_for};
}

Error ShrinkCaller::differ(const std::vector<int>& ranks) const {
  return error(ErrorKind::kMismatch,
               names(ranks) + " called it, too, but not with the same ranks to exclude");
}

std::optional<Error> ShrinkCaller::also_dead(const std::vector<int>& ranks) const {
  if (!call_.exact || ranks.empty()) return std::nullopt;
  return error(ErrorKind::kPeerDied,
               names(ranks) + (ranks.size() == 1 ? " is" : " are") +
                   " gone, too, and must be excluded, too. ringcomm.shrink() finds the dead");
}

std::string ShrinkCaller::to_call(const std::vector<int>& ranks) const {
  return names(ranks) + " to call it, too. If they never will, exclude them";
}

std::string ShrinkCaller::to_exclude_the_same(const std::vector<int>& ranks) const {
  return names(ranks) + " to exclude the same ranks";
}

std::string ShrinkCaller::to_make_the_group(const std::vector<int>& ranks) const {
  return names(ranks) + " to make the new group";
}

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

}  // namespace ringcomm::shm
