// How the ranks leave the store when a group is made or refused, and rank 0 erases what is there:
// see setup/bootstrap.h.
#include <algorithm>

#include "core/poll.h"
#include "setup/bootstrap.h"

namespace ringcomm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long rank 0 waits for the living to leave, and how long they then wait for it.
constexpr milliseconds kMostPatience{5000}, kLongerThanRank0{8000};
// In the counter of ranks that have left: one that does not wait until all is erased.
constexpr std::int64_t kNotWaiting = std::int64_t{1} << 32;
}  // namespace

// Calls is_over(how many have left, since when it waits) until it returns true, or patience has
// ended. True if no rank has left that may come again.
bool Bootstrap::await_others(
    const std::function<bool(std::int64_t left, Clock::duration waited)>& is_over) {
  const std::string left = list_of("left", own_.ticket);
  const Clock::time_point start = Clock::now();
  std::int64_t count = 0;
  const auto done = [&] {
    count = own_.world_size > 1 ? store_.add(left, 0) : 0;
    return is_over(count % kNotWaiting, Clock::now() - start);
  };
  return poll_for(kMostPatience, Poll(kShortSleep, kLongSleep), done) && count < kNotWaiting;
}

void Bootstrap::clear(int num_others, bool is_quiet) noexcept {
  bool have_left = is_quiet;
  error_of([&] {
    if (num_others == 0) return;
    bool is_one_dead = false;
    const auto is_over = [&](std::int64_t left, Clock::duration waited) {
      is_one_dead =
          waited > kLookEvery && std::ranges::any_of(participants_, [&](const auto& entry) {
            return !entry.second.lives(own_);
          });
      return left >= num_others || is_one_dead;
    };
    have_left = await_others(is_over) && is_quiet && !is_one_dead;
  });
  error_of([&] { erase_all(have_left); });
}

// The numbers of tickets begin at 0 again only if nothing is left of earlier ones. Until they do, a
// rank that is killed here leaves nothing that another attempt would take for its own.
void Bootstrap::erase_all(bool have_left) {
  if (!have_left) {
    if (own_.world_size > 1) store_.set(list_of("stays", own_.ticket), "");
    return;
  }
  const std::int64_t num_tickets = store_.add("tickets", 0);
  const bool are_all_known = first_ticket_ == 0 && num_tickets == own_.world_size;
  const bool is_erased = store_.erase("leader");
  if (!is_erased) return erase_all(false);
  for (int word = 0; store_.has(key_of("told", own_.ticket, word)); ++word) {
    store_.erase(key_of("told", own_.ticket, word));
  }
  erase_messages_and_shown();
  std::vector<std::int64_t> tickets = {own_.ticket};
  for (const auto& [rank, participant] : participants_) tickets.push_back(participant.ticket);
  for (const std::int64_t ticket : tickets) {
    store_.erase(list_of("tickets", ticket));
    if (ticket != own_.ticket) store_.erase(list_of("hello", ticket));
  }
  if (are_all_known) {
    store_.erase("begun");
    store_.erase("tickets");
  }
  if (own_.world_size > 1) store_.erase(list_of("left", own_.ticket));
}

// This rank's own: the ranks that wrote to it, or look for what it publishes, have done so.
void Bootstrap::erase_messages_and_shown() {
  for (const int place : shown_) store_.erase(key_of("shown", own_.ticket, place));
  if (!has_looked_for_messages_) return;
  const std::string receive = list_of("letters", own_.ticket);
  for (std::int64_t i = 0; i < messages_.first_unseen(); ++i) {
    store_.erase(receive + "/" + std::to_string(i));
  }
  store_.erase(receive);
}

void Bootstrap::leave(bool waits) noexcept {
  error_of([&] {
    const auto rank_0 = participants_.find(0);
    if (rank_0 == participants_.end() || !rank_0->second.lives(own_)) return;
    if (waits) erase_messages_and_shown();
    const std::string left = list_of("left", rank_0->second.ticket);
    store_.add(left, waits ? 1 : 1 + kNotWaiting);
    const std::string stays = list_of("stays", rank_0->second.ticket);
    if (!waits) return;
    poll_for(kLongerThanRank0, Poll(kShortSleep, kLongSleep),
             [&] { return !store_.has(left) || store_.has(stays) || !rank_0->second.lives(own_); });
  });
}

}  // namespace ringcomm
