// How the ranks of a group find each other in a store, and talk there.
//
// A store may outlive groups of the same name, and failed attempts at making one. Attempts are not
// counted, because the ranks might count them differently. Instead each rank that comes takes a
// ticket, whose number no other rank has had before:
//
//   key              set by       value
//   tickets          all          counter: how many tickets have been taken
//   tickets/T        ticket T's   which rank came, for which group
//   leader           rank 0       the same again, of the last rank 0 that came
//   hello/T          rank 0       to ticket T: which rank 0 this is; which broadcast T reads first
//   told/T/I         rank 0       with ticket T: its I-th broadcast to all
//   letters/T        all          counter, and letters/T/I: messages to ticket T
//   shown/T/I        ticket T's   what that rank publishes
//   begun            rank 0       the first ticket that is not of a group made already
//   left/T           all          counter, at rank 0's ticket T: ranks that read nothing more
//   stays/T          rank 0       nothing will be erased
//
// Invariant: every message stands under a ticket, so no rank ever reads what was meant for another
// attempt. Messages of attempts that failed are never read.
//
// So a store gets a few keys per rank, and only rank 0 looks at the tickets of all. A rank that
// waits checks whether the ranks that it waits for still live: tickets contain their processes.
//
// In the end rank 0 erases all of it, and the numbers of tickets begin at 0 again. No rank may look
// for a key that is being erased, and none may come again before all keys are erased: so rank 0
// waits until all others report that they have left, and they wait until it has erased that report,
// too, which is the last key. The keys stay if a rank does not report in time, or if earlier
// attempts have left something.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/status.h"
#include "setup/group_config.h"
#include "setup/host_assignment.h"
#include "setup/store.h"

namespace ringcomm {

struct SetupMessage {
  int from;
  std::string text;
};

class Bootstrap {
 public:
  // Takes a ticket, which may say why this rank will not come. `store` and `config` must outlive
  // this.
  Bootstrap(Store& store, const GroupConfig& config, const std::string& refusal = "");

  const Participant& self() const { return own_; }
  // By rank, the last that came, without this rank. On rank 0 all that it has seen; on others rank
  // 0 and the ranks that they have connected to.
  const std::map<int, Participant>& participants() const { return participants_; }

  // Rank 0: finds the ranks that have come meanwhile, and greets them. Throws Error (kMismatch) if
  // a process stays that wants another group than this.
  void look();
  // To all that have been greeted. A rank that is greeted later reads only later broadcasts.
  void broadcast(const std::string& word);
  // Reports to all that have come, or come in the next second or in the time given, that there will
  // be no group. Returns when they have read it, or after a few seconds: the store may live in this
  // process, which is about to end.
  static constexpr std::chrono::milliseconds kLinger{1000}, kLongLinger{5000};
  void refuse(const Error& error, std::chrono::milliseconds linger = kLinger);
  // All that have come are in the group now: ranks that come later belong to another one.
  void close();
  // When the group is made: waits until so many others have left, and erases what the set-up has
  // written. `is_quiet`: those of this host have left, too.
  void clear(int num_others, bool is_quiet) noexcept;

  // The others: the next broadcast of rank 0. Throws the Error by which it refuses.
  std::optional<std::string> next_broadcast();
  bool knows_rank_0() const { return knows_rank_0_; }
  // If rank 0 has ended, it can report nothing more: sends the reason to all in its place. Does
  // nothing if it lives.
  void refuse_for_rank_0(const Error& error);

  // To be thrown if what stands in the store is no record of this build.
  Error not_understood(const std::string& writer) const;

  // This rank reads nothing more in the store. With `waits` it returns when rank 0 has erased what
  // is to be erased, or has ended; without, rank 0 erases nothing.
  void leave(bool waits) noexcept;
  // Whether rank 0 has refused the group, by what this rank has read.
  bool is_refused() const { return is_refused_; }

  // To and from ranks that this one has connected to. Messages of ranks that have been replaced are
  // dropped.
  void connect(int rank, std::int64_t ticket);
  void send(int to, const std::string& text);
  std::vector<SetupMessage> receive();
  void publish(int place, const std::string& text);
  std::optional<std::string> published_by(int rank, int place);

  // Sleeps a little; less, after something has come. Throws Error when one of the awaited ranks
  // will not come (kPeerDied), or when time is up (kTimeout). True ten times per second.
  bool pause(const std::vector<int>& awaited);

 private:
  // Sleeps between two looks at the store.
  static constexpr std::chrono::microseconds kShortSleep{200}, kLongSleep{20'000};

  // Names of the keys that belong to a ticket: "letters/7", "told/7/0".
  static std::string list_of(const char* kind, std::int64_t ticket);
  static std::string key_of(const char* kind, std::int64_t ticket, int place);

  void read_tickets();
  [[noreturn]] void refused(const Error& refusal);

  // Leaving the store.
  bool await_others(const std::function<bool(std::int64_t left, Clock::duration waited)>& is_over);
  void erase_all(bool have_left);
  void erase_messages_and_shown();

  void welcome(const Participant& participant);
  void look_at_rank_0();
  bool is_meant(const Participant& participant, std::chrono::seconds doubt) const;
  std::string why_lost(int rank);
  [[noreturn]] void give_up(const std::vector<int>& awaited);
  std::string who() const;
  void wake();

  Store& store_;
  const GroupConfig& config_;
  Deadline deadline_;
  const std::int64_t first_ticket_;  // that may be of this attempt
  Series tickets_;
  Participant own_;
  Series messages_;
  std::map<int, Participant> participants_;
  struct Stranger {
    Participant participant;
    Clock::time_point seen;
  };
  std::vector<Stranger> strangers_;  // participants that want another group
  std::set<std::int64_t> welcomed_;  // tickets, by rank 0
  bool knows_rank_0_ = false;        // it has greeted
  bool is_refused_ = false;
  bool has_looked_for_messages_ = false;
  std::vector<int> shown_;  // places
  int num_broadcasts_ = 0;  // of rank 0, sent or received, or not meant for this rank
  Poll poll_;
};

// This rank has failed before others could know of it, or of the reason: takes another ticket to
// report it.
void decline(Store& store, const GroupConfig& config, const std::exception_ptr& error) noexcept;

}  // namespace ringcomm
