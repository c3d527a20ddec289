// What rank 0 does that others do not: see shm/meeting.h.
#include <algorithm>
#include <random>

#include "core/record.h"
#include "core/refusal.h"
#include "shm/meeting.h"

namespace ringcomm::shm {
namespace {

// Tickets of the same number may be taken again.
std::string new_name(std::int64_t ticket) {
  std::random_device random;
  return std::to_string(ticket) + "-" + std::to_string(random()) + std::to_string(random());
}

}  // namespace

Placement Meeting::lead() {
  try {
    name_ = new_name(roll_call_.self().ticket);
    for (;;) {
      roll_call_.look();
      place();
      receive();
      if (!seating_.tickets().empty() && seating_.is_complete()) break;
      await();
    }
    const Placement placement = seating_.placement();
    between_ = {agreed_engine(placement), invitation_.across, invitation_.silence};
    roll_call_.close();
    std::vector<std::string> host_names = {roll_call_.self().host};
    for (int host = 1; host < placement.num_hosts(); ++host) {
      host_names.push_back(roll_call_.attendees().at(placement.leader_of(host)).host);
    }
    if (invitation_.world_size > 1) roll_call_.tell(made_word(between_, host_names));
    attempt_.declare_made(placement, host_names, between_);
    const bool is_quiet = attempt_.await_others();
    roll_call_.clear(placement.num_hosts() - 1, is_quiet);
    attempt_.let_go();
    return placement;
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const Error refusal(known != nullptr ? known->kind() : ErrorKind::kSystem, error.what());
    attempt_.declare_refused(refusal);
    roll_call_.refuse(refusal);
    throw;
  }
}

// Who has ended may have written just before why it could not go on, which says more.
void Meeting::await() {
  try {
    roll_call_.pause(awaited());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kPeerDied) receive();
    throw;
  }
}

// As soon as all have come, and again where one comes in the place of another, by guess.
void Meeting::place() {
  const std::map<int, Attendee>& others = roll_call_.attendees();
  if (static_cast<int>(others.size()) + 1 != invitation_.world_size) return;
  std::vector<std::int64_t> tickets = {roll_call_.self().ticket};
  std::vector<Attendee> all = {roll_call_.self()};
  for (const auto& [rank, attendee] : others) {
    tickets.push_back(attendee.ticket);
    all.push_back(attendee);
  }
  if (tickets == seating_.tickets()) return;
  const std::vector<std::string> guesses = guesses_of(all);
  seating_ = Seating(std::move(tickets), guesses, seating_.next_attempt());
  tell();
}

// Its own place first: the others of its host look for the file when they have heard.
void Meeting::tell() {
  attempt_.sit(seating_, name_);
  if (invitation_.world_size > 1) {
    roll_call_.tell((RecordWriter() << name_).text() + seating_.text());
  }
}

void Meeting::receive() {
  bool is_changed = false;
  for (const Letter& letter : roll_call_.letters()) {
    if (const auto failure = read_refusal(letter.text)) throw *failure;
    attempt_.take_in(letter);
    if (const auto outcome = Attempt::Outcome::read(letter.text, invitation_.world_size)) {
      is_changed = take_in(*outcome) || is_changed;
    }
  }
  if (const auto own = attempt_.outcome()) is_changed = take_in(*own) || is_changed;
  if (is_changed) tell();
}

// True: the seating has changed.
bool Meeting::take_in(const Attempt::Outcome& outcome) {
  engines_[outcome.attempt] = outcome.engines;
  if (outcome.out_of_reach.empty()) {
    seating_.set_joined(outcome.attempt);
    return false;
  }
  seating_.set_out_of_reach(outcome.attempt, outcome.named, outcome.out_of_reach);
  return true;
}

// Empty: there is but one host, or the ranks leave it open.
std::string Meeting::agreed_engine(const Placement& placement) const {
  if (placement.num_hosts() == 1 || !invitation_.engines) return "";
  std::vector<const std::vector<std::string>*> of_hosts;
  for (int host = 0; host < placement.num_hosts(); ++host) {
    of_hosts.push_back(&engines_.at(seating_.attempt_of(placement.leader_of(host))));
  }
  const auto is_everywhere = [&](const std::string& engine) {
    return std::ranges::all_of(of_hosts, [&](const std::vector<std::string>* engines) {
      return std::ranges::find(*engines, engine) != engines->end();
    });
  };
  const std::vector<std::string>& own = *of_hosts.front();
  const auto agreed = std::ranges::find_if(own, is_everywhere);
  if (agreed != own.end()) return *agreed;
  std::string text;
  for (int host = 0; host < placement.num_hosts(); ++host) {
    text += (host > 0 ? ", " : "") + invitation_.members.name(placement.leader_of(host)) + " has";
    for (const std::string& engine : *of_hosts[host]) text += " " + engine;
  }
  throw Error(ErrorKind::kMismatch,
              "nothing carries bytes between all hosts of " + describe(invitation_) + ": " + text +
                  ". RINGCOMM_LINKS chooses; `python -m ringcomm doctor` says what a host has");
}

// Those who have not come, or are not in their places; those that are can still end, and then the
// group is made with them.
std::vector<int> Meeting::awaited() {
  std::vector<int> ranks = attempt_.awaited();
  const bool is_placed = !seating_.tickets().empty();
  for (int rank = 1; rank < invitation_.world_size; ++rank) {
    const bool is_here = is_placed && seating_.attempt_of(rank) == seating_.attempt_of(0);
    if (!is_placed || (!is_here && !seating_.has_joined(rank))) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace ringcomm::shm
