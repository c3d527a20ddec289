#include "shm/group_setup.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/thread.h"
#include "setup/bootstrap.h"
#include "setup/host_assignment.h"
#include "setup/record.h"
#include "shm/segment_setup.h"

namespace ringcomm::shm {
namespace {

constexpr char kMadeTag[] = "made";

// What rank 0 broadcasts last: that the group is made, its settings, and the names of the hosts.
std::string made_message(const InterHostConfig& inter_host,
                         const std::vector<std::string>& host_names) {
  RecordWriter word;
  word << kMadeTag << inter_host.text();
  for (const std::string& name : host_names) word << name;
  return word.text();
}

bool is_made(const std::string& word, InterHostConfig* inter_host,
             std::vector<std::string>* host_names) {
  RecordReader record(word);
  std::string tag, text;
  record >> tag >> text;
  const std::optional<InterHostConfig> found = InterHostConfig::read(text);
  if (!record || tag != kMadeTag || !found) return false;
  *inter_host = *found;
  while (record && !record.is_at_end()) record >> host_names->emplace_back();
  return static_cast<bool>(record);
}

// Tickets of the same number may be taken again.
std::string new_name(std::int64_t ticket) {
  std::random_device random;
  return std::to_string(ticket) + "-" + std::to_string(random()) + std::to_string(random());
}

class GroupSetup {
 public:
  GroupSetup(Segment& segment, Store& store, const GroupConfig& config)
      : config_(config),
        rank_(config.rank),
        bootstrap_(store, config),
        segment_setup_(segment, bootstrap_, config) {}

  MadeGroup run() {
    try {
      const Placement placement = rank_ == 0 ? lead() : follow();
      return {placement, inter_host_};
    } catch (...) {
      segment_setup_.clean_up();
      if (rank_ != 0) bootstrap_.leave(is_refused_ || bootstrap_.is_refused());
      throw;
    }
  }

 private:
  // ---- What the others do -----------------------------------------------------------------------

  Placement follow() {
    bool listens = true;
    for (;;) {
      if (const std::optional<Placement> made = go_on(listens)) return *made;
      std::vector<int> awaited = {0};
      if (!wrote_death_) {
        for (const int rank : segment_setup_.awaited()) awaited.push_back(rank);
      }
      listens = !segment_setup_.has_joined();
      try {
        // In memory all is said there, but for what its first rank does not live to say.
        if (bootstrap_.pause(awaited)) listens = true;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kPeerDied) throw;
        if (const std::optional<Placement> made = after_death(error)) return *made;
      }
    }
  }

  // Where the group is made.
  std::optional<Placement> go_on(bool listens) {
    if (listens) {
      if (const std::optional<Placement> made = listen()) return made;
    }
    or_write(config_.members.name(rank_) + " could not join the group: ",
             [this] { segment_setup_.join(); });
    if (segment_setup_.is_first()) or_write("", [this] { report(); });
    try {
      const std::optional<Placement> made = segment_setup_.verdict();
      if (made) inter_host_ = segment_setup_.inter_host();
      return made;
    } catch (const Error&) {
      is_refused_ = true;
      throw;
    }
  }

  std::optional<Placement> listen() {
    std::optional<std::string> word;
    for (;;) {
      try {
        word = bootstrap_.next_broadcast();
      } catch (const Error& refusal) {
        segment_setup_.declare_refused(refusal);
        throw;
      }
      if (!word) return std::nullopt;
      std::vector<std::string> host_names;
      if (is_made(*word, &inter_host_, &host_names)) {
        if (assignment_.tickets().empty()) continue;  // with another in this one's place
        const Placement placement = assignment_.placement();
        if (static_cast<int>(host_names.size()) != placement.num_hosts()) break;
        segment_setup_.declare_made(placement, host_names, inter_host_);
        leave();
        if (segment_setup_.has_joined()) segment_setup_.await_first();
        return placement;
      }
      RecordReader record(*word);
      std::string name;
      record >> name;
      const std::optional<HostAssignment> assignment =
          HostAssignment::read(record.rest(), config_.world_size);
      if (!record || !assignment) break;
      assignment_ = *assignment;
      if (assignment_.tickets().at(rank_) == bootstrap_.self().ticket) {
        or_write("", [&] { segment_setup_.take_part(assignment_, name); });
      } else {
        assignment_ = HostAssignment();
      }
    }
    throw bootstrap_.not_understood("rank 0");
  }

  // The group is made: this rank, and for the first those of its host, read nothing more in the
  // store.
  void leave() noexcept {
    if (!segment_setup_.is_first()) return;
    bootstrap_.leave(segment_setup_.await_others());
    segment_setup_.let_go();
  }

  void report() {
    for (const SetupMessage& message : bootstrap_.receive()) segment_setup_.take_in(message);
    if (const auto outcome = segment_setup_.outcome()) bootstrap_.send(0, outcome->text());
  }

  // What ends this rank's part ends the group.
  void or_write(const std::string& prefix, const std::function<void()>& body) {
    try {
      once_for_all(body);
    } catch (const Error& error) {
      bootstrap_.send(0, write_refusal(Error(error.kind(), prefix + error.what())));
      throw;
    }
  }

  // The group may be made nevertheless; else rank 0 is to refuse it to all, in the same words.
  std::optional<Placement> after_death(const Error& death) {
    if (const std::optional<Placement> made = go_on(true)) return made;
    if (wrote_death_ || !bootstrap_.knows_rank_0()) throw death;
    wrote_death_ = true;
    bootstrap_.refuse_for_rank_0(death);
    bootstrap_.send(0, write_refusal(death));
    return std::nullopt;
  }

  // ---- What rank 0 does that others do not ------------------------------------------------------

  Placement lead() {
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
  void await() {
    try {
      bootstrap_.pause(awaited());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kPeerDied) receive();
      throw;
    }
  }

  // As soon as all have come, and again where one comes in the place of another, by guess.
  void place() {
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
  void broadcast() {
    segment_setup_.take_part(assignment_, name_);
    if (config_.world_size > 1) {
      bootstrap_.broadcast((RecordWriter() << name_).text() + assignment_.text());
    }
  }

  void receive() {
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
  bool take_in(const SegmentSetup::Outcome& outcome) {
    engines_[outcome.attempt] = outcome.engines;
    if (outcome.out_of_reach.empty()) {
      assignment_.set_joined(outcome.attempt);
      return false;
    }
    assignment_.set_out_of_reach(outcome.attempt, outcome.named, outcome.out_of_reach);
    return true;
  }

  // Empty: there is but one host, or the ranks leave it open.
  std::string agreed_engine(const Placement& placement) const {
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

  // The ranks that have not come, or are not in their places. Those that are can still end, and
  // then the group is made with them.
  std::vector<int> awaited() {
    std::vector<int> ranks = segment_setup_.awaited();
    const bool is_placed = !assignment_.tickets().empty();
    for (int rank = 1; rank < config_.world_size; ++rank) {
      const bool is_here = is_placed && assignment_.attempt_of(rank) == assignment_.attempt_of(0);
      if (!is_placed || (!is_here && !assignment_.has_joined(rank))) ranks.push_back(rank);
    }
    return ranks;
  }

  const GroupConfig& config_;
  const int rank_;
  Bootstrap bootstrap_;
  SegmentSetup segment_setup_;
  std::string name_;           // rank 0's: no other group is named so
  HostAssignment assignment_;  // rank 0's last one, if this rank is in it
  InterHostConfig inter_host_;
  std::map<int, std::vector<std::string>> engines_;  // rank 0's: by attempt
  bool is_refused_ = false;                          // as memory says
  bool wrote_death_ = false;                         // to rank 0; the answer is awaited
};

}  // namespace

MadeGroup make_group(Segment& segment, Store& store, const GroupConfig& config) {
  return GroupSetup(segment, store, config).run();
}

}  // namespace ringcomm::shm
