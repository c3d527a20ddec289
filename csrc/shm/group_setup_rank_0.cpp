// What rank 0 does that others do not: see shm/group_setup.h.
#include <algorithm>
#include <random>

#include "setup/record.h"
#include "shm/group_setup.h"

namespace ringcomm::shm {
namespace {

// Tickets of the same number may be taken again.
std::string new_name(std::int64_t ticket) {
  std::random_device random;
  return std::to_string(ticket) + "-" + std::to_string(random()) + std::to_string(random());
}

}  // namespace

Placement GroupSetup::lead() {
  try {
    name_ = new_name(bootstrap_.self().ticket);
    for (;;) {
      bootstrap_.look();
      place();
      receive();
      if (!assignment_.tickets().empty() && assignment_.is_complete()) break;
      await();
    }
    const Placement placement = assignment_.placement();
    inter_host_ = {agreed_engine(placement), config_.link, config_.heartbeat_timeout};
    bootstrap_.close();
    std::vector<std::string> host_names = {bootstrap_.self().host};
    for (int host = 1; host < placement.num_hosts(); ++host) {
      host_names.push_back(bootstrap_.participants().at(placement.leader_of(host)).host);
    }
    if (config_.world_size > 1) bootstrap_.broadcast(made_message(inter_host_, host_names));
    segment_setup_.declare_made(placement, host_names, inter_host_);
    const bool is_quiet = segment_setup_.await_others();
    bootstrap_.clear(placement.num_hosts() - 1, is_quiet);
    segment_setup_.let_go();
    return placement;
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const Error refusal(known != nullptr ? known->kind() : ErrorKind::kSystem, error.what());
    segment_setup_.declare_refused(refusal);
    bootstrap_.refuse(refusal);
    throw;
  }
}

// A rank that has ended may have written just before why it could not go on, which says more.
void GroupSetup::await() {
  try {
    bootstrap_.pause(awaited());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kPeerDied) receive();
    throw;
  }
}

// As soon as all have come, and again where one comes in the place of another, by guess.
void GroupSetup::place() {
  const std::map<int, Participant>& others = bootstrap_.participants();
  if (static_cast<int>(others.size()) + 1 != config_.world_size) return;
  std::vector<std::int64_t> tickets = {bootstrap_.self().ticket};
  std::vector<Participant> all = {bootstrap_.self()};
  for (const auto& [rank, participant] : others) {
    tickets.push_back(participant.ticket);
    all.push_back(participant);
  }
  if (tickets == assignment_.tickets()) return;
  const std::vector<std::string> guesses = guesses_of(all);
  assignment_ = HostAssignment(std::move(tickets), guesses, assignment_.next_attempt());
  broadcast();
}

// Its own place first: the others of its host look for the file when they have the broadcast.
void GroupSetup::broadcast() {
  segment_setup_.take_part(assignment_, name_);
  if (config_.world_size > 1) {
    bootstrap_.broadcast((RecordWriter() << name_).text() + assignment_.text());
  }
}

void GroupSetup::receive() {
  bool is_changed = false;
  for (const SetupMessage& message : bootstrap_.receive()) {
    if (const auto failure = read_refusal(message.text)) throw *failure;
    segment_setup_.take_in(message);
    if (const auto outcome = SegmentSetup::Outcome::read(message.text, config_.world_size)) {
      is_changed = take_in(*outcome) || is_changed;
    }
  }
  if (const auto own = segment_setup_.outcome()) is_changed = take_in(*own) || is_changed;
  if (is_changed) broadcast();
}

// True: the host assignment has changed.
bool GroupSetup::take_in(const SegmentSetup::Outcome& outcome) {
  engines_[outcome.attempt] = outcome.engines;
  if (outcome.out_of_reach.empty()) {
    assignment_.set_joined(outcome.attempt);
    return false;
  }
  assignment_.set_out_of_reach(outcome.attempt, outcome.named, outcome.out_of_reach);
  return true;
}

// Empty: there is but one host, or the ranks leave it open.
std::string GroupSetup::agreed_engine(const Placement& placement) const {
  if (placement.num_hosts() == 1 || !config_.engines) return "";
  std::vector<const std::vector<std::string>*> of_hosts;
  for (int host = 0; host < placement.num_hosts(); ++host) {
    of_hosts.push_back(&engines_.at(assignment_.attempt_of(placement.leader_of(host))));
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
    text += (host > 0 ? ", " : "") + config_.members.name(placement.leader_of(host)) + " has";
    for (const std::string& engine : *of_hosts[host]) text += " " + engine;
  }
  throw Error(ErrorKind::kMismatch,
              "nothing carries bytes between all hosts of " + describe(config_) + ": " + text +
                  ". RINGCOMM_LINKS chooses; `python -m ringcomm doctor` says what a host has");
}

// The ranks that have not come, or are not in their places. Those that are can still end, and then
// the group is made with them.
std::vector<int> GroupSetup::awaited() {
  std::vector<int> ranks = segment_setup_.awaited();
  const bool is_placed = !assignment_.tickets().empty();
  for (int rank = 1; rank < config_.world_size; ++rank) {
    const bool is_here = is_placed && assignment_.attempt_of(rank) == assignment_.attempt_of(0);
    if (!is_placed || (!is_here && !assignment_.has_joined(rank))) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace ringcomm::shm
