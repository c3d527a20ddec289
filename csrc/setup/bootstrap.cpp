#include "setup/bootstrap.h"

#include <algorithm>

#include "core/call.h"
#include "core/deadline.h"
#include "core/poll.h"
#include "setup/record.h"

namespace ringcomm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A rank that came before this one and has ended may belong to an attempt of which no rank is left.
// The others of this attempt may take a while to come: a process starts slowly on a busy host.
constexpr seconds kDoubt{30};
// The doubt is shorter if the process has started at about the same time as this one, or later: one
// of an earlier attempt has started, ended, and been replaced before.
constexpr seconds kLittleDoubt{1};
constexpr double kStartTogether = 0.5;  // seconds
// A rank that wants another group may be left over from one, and about to come again.
constexpr seconds kMayComeAgain{2};
// Rank 0 knows most about the ranks that did not come, so the others let it report first.
constexpr milliseconds kRank0First{1000};
// Rank 0 reports to ranks that come a little later why there is no group. Ranks that come later
// still read it after kOldRefusal: it might have been meant for an earlier attempt.
constexpr seconds kOldRefusal{5};
// So many ranks sleep no longer than kLongSleep; more sleep longer, as they share one store.
constexpr int kRanksOfLongSleep = 128;

std::uint64_t digest_of(const GroupConfig& config) {
  Digest digest;
  for (int r = 0; r < config.world_size; ++r) digest.add(config.members.global(r));
  return digest.value();
}

std::int64_t first_ticket(Store& store) {
  std::int64_t first = 0;
  if (const std::optional<std::string> begun = store.find("begun")) read_number(*begun, first);
  return std::max<std::int64_t>(first, 0);
}

}  // namespace

Bootstrap::Bootstrap(Store& store, const GroupConfig& config, const std::string& refusal)
    : store_(store),
      config_(config),
      deadline_(Deadline::in(config.timeout)),
      first_ticket_(first_ticket(store)),
      tickets_(store, "tickets", first_ticket_),
      own_{.ticket = tickets_.take(),
           .rank = config.rank,
           .world_size = config.world_size,
           .members = digest_of(config),
           .process = Process::self(),
           .boot = boot_id(),
           .host = config.host.empty() ? host_name() : config.host,
           .is_host_given = !config.host.empty(),
           .refusal = refusal},
      messages_(store, list_of("letters", own_.ticket)),
      poll_(kShortSleep, kLongSleep * std::max(1, config.world_size / kRanksOfLongSleep)) {
  tickets_.write(own_.ticket, own_.text());
  if (own_.rank == 0) {
    store_.set("leader", own_.text());
  } else {
    deadline_.timeout += kRank0First;
  }
}

void decline(Store& store, const GroupConfig& config, const std::exception_ptr& error) noexcept {
  error_of([&] {
    const std::string why =
        config.members.name(config.rank) + " could not join the group: " + what_of(error);
    if (config.rank == 0) {
      Bootstrap(store, config).refuse(Error(ErrorKind::kSystem, why), Bootstrap::kLongLinger);
    } else {
      Bootstrap(store, config, what_of(error));
    }
  });
}

std::string Bootstrap::list_of(const char* kind, std::int64_t ticket) {
  return std::string(kind) + "/" + std::to_string(ticket);
}

std::string Bootstrap::key_of(const char* kind, std::int64_t ticket, int place) {
  return list_of(kind, ticket) + "/" + std::to_string(place);
}

std::string Bootstrap::who() const { return config_.members.name(config_.rank); }

Error Bootstrap::not_understood(const std::string& writer) const {
  return Error(ErrorKind::kMismatch, who() + " cannot read what " + writer +
                                         " has written to the group's store: it does not run the "
                                         "same build of ringcomm");
}

void Bootstrap::wake() { poll_.restart(); }

void Bootstrap::read_tickets() {
  tickets_.read([&](std::int64_t, const std::string& text) {
    const std::optional<Participant> came = Participant::read(text);
    if (!came) throw not_understood("a rank that joins the group");
    if (came->world_size != own_.world_size || came->members != own_.members) {
      strangers_.push_back({*came, Clock::now()});
    } else if (came->rank != own_.rank) {
      participants_[came->rank] = *came;
      wake();
    }
  });
}

void Bootstrap::welcome(const Participant& participant) {
  if (!welcomed_.insert(participant.ticket).second) return;
  store_.set(list_of("hello", participant.ticket),
             (RecordWriter() << num_broadcasts_).text() + own_.text());
}

void Bootstrap::look() {
  read_tickets();
  for (const auto& [rank, participant] : participants_) welcome(participant);
  for (const Stranger& stranger : strangers_) {
    const Participant& came = stranger.participant;
    if (Clock::now() - stranger.seen < kMayComeAgain || !came.lives(own_)) continue;
    throw Error(ErrorKind::kMismatch,
                "the ranks do not agree on who is in the group: " + who() + " makes one of " +
                    std::to_string(own_.world_size) + " ranks, and process " +
                    std::to_string(came.process.pid) + " on host " + came.host + " came as rank " +
                    std::to_string(came.rank) + " of " + std::to_string(came.world_size) +
                    (came.world_size == own_.world_size ? ", of other ranks" : ""));
  }
}

void Bootstrap::broadcast(const std::string& word) {
  store_.set(key_of("told", own_.ticket, num_broadcasts_++), word);
  wake();
}

void Bootstrap::refuse(const Error& error, milliseconds linger) {
  const std::string text = write_refusal(error);
  store_.set("leader", own_.text() + text);
  const int word = num_broadcasts_;
  broadcast(text);
  num_broadcasts_ = word;  // also to ranks that are greeted now
  const int all = own_.world_size - 1;
  int readers = 0;
  const bool have_left = await_others([&](std::int64_t left, Clock::duration waited) {
    for (const auto& [rank, participant] : participants_) welcome(participant);
    for (const Stranger& stranger : strangers_) welcome(stranger.participant);
    const bool have_come = static_cast<int>(participants_.size()) == all || waited > linger;
    readers = static_cast<int>(std::ranges::count_if(participants_, [&](const auto& entry) {
      return entry.second.refusal.empty() && entry.second.lives(own_);
    }));
    if (have_come && left >= readers) return true;
    read_tickets();
    return false;
  });
  close();
  erase_all(have_left && readers == all);
}

void Bootstrap::close() {
  store_.set("begun", std::to_string(std::max(tickets_.first_unread(), own_.ticket + 1)));
}

std::optional<std::string> Bootstrap::next_broadcast() {
  if (!knows_rank_0_) {
    const std::optional<std::string> hello = store_.find(list_of("hello", own_.ticket));
    if (!hello) return std::nullopt;
    RecordReader record(*hello);
    int words = 0;
    record >> words;
    const std::optional<Participant> rank_0 = Participant::read(record.rest());
    if (!record || !rank_0 || rank_0->rank != 0) throw not_understood("rank 0");
    participants_[0] = *rank_0;
    num_broadcasts_ = words;
    knows_rank_0_ = true;
  }
  const std::optional<std::string> word =
      store_.find(key_of("told", participants_[0].ticket, num_broadcasts_));
  if (!word) return std::nullopt;
  ++num_broadcasts_;
  wake();
  if (const std::optional<Error> refusal = read_refusal(*word)) refused(*refusal);
  return word;
}

void Bootstrap::refuse_for_rank_0(const Error& error) {
  if (!knows_rank_0_ || participants_[0].lives(own_)) return;
  store_.set(key_of("told", participants_[0].ticket, num_broadcasts_), write_refusal(error));
}

void Bootstrap::connect(int rank, std::int64_t ticket) {
  const auto known = participants_.find(rank);
  if (known != participants_.end() && known->second.ticket == ticket) return;
  const std::optional<std::string> text = tickets_.at(ticket);
  const std::optional<Participant> participant = text ? Participant::read(*text) : std::nullopt;
  if (participant) participants_[rank] = *participant;
}

void Bootstrap::send(int to, const std::string& text) {
  Series(store_, list_of("letters", participants_.at(to).ticket))
      .append((RecordWriter() << own_.rank << own_.ticket).text() + text);
}

std::vector<SetupMessage> Bootstrap::receive() {
  std::vector<SetupMessage> received;
  has_looked_for_messages_ = true;
  messages_.read([&](std::int64_t, const std::string& text) {
    RecordReader record(text);
    int rank = -1;
    std::int64_t ticket = -1;
    record >> rank >> ticket;
    const auto known = participants_.find(rank);
    if (!record || known == participants_.end() || known->second.ticket != ticket) return;
    received.push_back({rank, std::string(record.rest())});
    wake();
  });
  return received;
}

void Bootstrap::publish(int place, const std::string& text) {
  shown_.push_back(place);
  store_.set(key_of("shown", own_.ticket, place), text);
}

std::optional<std::string> Bootstrap::published_by(int rank, int place) {
  return store_.find(key_of("shown", participants_.at(rank).ticket, place));
}

void Bootstrap::look_at_rank_0() {
  if (knows_rank_0_) return;
  const std::optional<std::string> text = store_.find("leader");
  if (!text) return;
  std::string_view rest;
  const std::optional<Participant> rank_0 = Participant::read(*text, &rest);
  if (!rank_0 || rank_0->ticket < tickets_.first_unseen()) return;
  participants_[0] = *rank_0;
  const std::optional<Error> refusal = read_refusal(rest);
  if (refusal && is_meant(*rank_0, kOldRefusal)) refused(*refusal);
}

void Bootstrap::refused(const Error& refusal) {
  is_refused_ = true;
  throw refusal;
}

// Whether the participant is of this attempt at making the group, or has had time to come once
// more.
bool Bootstrap::is_meant(const Participant& participant, seconds doubt) const {
  if (participant.ticket > own_.ticket || (participant.rank == 0 && knows_rank_0_)) return true;
  const double later = participant.process.started() - own_.process.started();
  if (later > -kStartTogether) doubt = std::min(doubt, kLittleDoubt);
  return Clock::now() - deadline_.start > doubt;
}

// Empty: it may still come.
std::string Bootstrap::why_lost(int rank) {
  std::string how;
  if (config_.gone && config_.gone(rank, &how)) return how;
  const auto it = participants_.find(rank);
  if (it == participants_.end()) return "";
  const Participant& participant = it->second;
  if (!participant.refusal.empty() && is_meant(participant, kOldRefusal))
    return participant.refusal;
  if (!participant.lives(own_) && is_meant(participant, kDoubt)) {
    return "its process " + std::to_string(participant.process.pid) + " has ended (on host " +
           participant.host + ")";
  }
  return "";
}

bool Bootstrap::pause(const std::vector<int>& awaited) {
  const bool looks = poll_.looks_around();
  if (looks) {
    check_interrupt();
    if (own_.rank != 0) look_at_rank_0();
    for (const int rank : awaited) {
      const std::string how = why_lost(rank);
      if (how.empty()) continue;
      throw Error(ErrorKind::kPeerDied, who() + " was making " + describe(config_) + " and after " +
                                            describe_seconds(deadline_.waited()) + " found that " +
                                            config_.members.name(rank) + " will not come: " + how);
    }
    if (deadline_.has_passed()) give_up(awaited);
  }
  poll_.sleep();
  return looks;
}

void Bootstrap::give_up(const std::vector<int>& awaited) {
  read_tickets();
  std::vector<int> missing;
  for (int r = 0; r < own_.world_size; ++r) {
    if (r != own_.rank && !participants_.contains(r)) missing.push_back(r);
  }
  std::string text = who() + " waited " + describe_seconds(deadline_.waited()) + " to make " +
                     describe(config_) + ". Timed out: ";
  if (missing.empty()) {
    text += "all came, and ";
    for (const auto& [rank, participant] : participants_) {
      if (!participant.lives(own_)) {
        text += config_.members.name(rank) + "'s process " +
                std::to_string(participant.process.pid) + " has ended (on host " +
                participant.host + "), ";
      }
    }
    text += config_.members.names(awaited) + " did not go on";
  } else {
    text += config_.members.names(missing) + " did not come. Are they running, and do all ranks " +
            "make the same groups in the same order, through one store?";
  }
  throw Error(ErrorKind::kTimeout, text);
}

// ---- Leaving the store --------------------------------------------------------------------------

namespace {

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
  const std::string letters = list_of("letters", own_.ticket);
  for (std::int64_t i = 0; i < messages_.first_unseen(); ++i) {
    store_.erase(letters + "/" + std::to_string(i));
  }
  store_.erase(letters);
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
