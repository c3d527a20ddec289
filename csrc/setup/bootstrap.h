// How the ranks of a group find each other in a store, and talk there.
//
// A store may outlive groups of the same name, and attempts at making one in which some ranks died.
// Nobody counts attempts, which the ranks might count differently. Instead whoever comes takes a
// ticket, whose number nobody has borne before:
//
//   key              set by       value
//   tickets          all          counter: how many tickets have been taken
//   tickets/T        ticket T's   who came, for which group
//   leader           rank 0       the same again, of the last rank 0 that came
//   hello/T          rank 0       to that one: who rank 0 is, and from where on it is to listen
//   told/T/I         rank 0       of ticket T: what it says to all; the I-th word
//   letters/T        all          counter, and letters/T/I: what others say to that one
//   shown/T/I        that one     what it shows to those who look for it there
//   begun            rank 0       the first ticket that is not of a group made already
//   left/T           all          counter, of rank 0's ticket T: who reads nothing more
//   stays/T          rank 0       nothing will be erased
//
// Invariant: what is said stands under a ticket, so nobody ever reads what was meant for another
// attempt. What is said to attempts that failed nobody reads.
//
// So a store gets a few keys per rank, and only rank 0 looks at the tickets of all. Whoever waits
// looks whether those it waits for still live: tickets tell their processes.
//
// In the end rank 0 erases all of it, and the numbers of tickets begin at 0 again. Nobody may look
// for a key that is being erased, and nobody may come again before all are: so rank 0 waits until
// all others say that they have left, and they wait until it has erased that, too, which is the
// last. Where somebody does not say so in time, or earlier attempts have left something, it stays.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "setup/group_config.h"
#include "setup/participant.h"
#include "setup/store.h"

namespace ringcomm {

struct SetupMessage {
  int from;
  std::string text;
};

class Bootstrap {
 public:
  // Takes a ticket, which may say why this rank will not come. `store` and `group's configuration`
  // must stay.
  Bootstrap(Store& store, const GroupConfig& config, const std::string& refusal = "");

  const Participant& self() const { return own_; }
  // By rank, the last that came; not oneself. Rank 0's: all that it has seen; others': those whom
  // they were told to meet.
  const std::map<int, Participant>& participants() const { return participants_; }

  // Rank 0: looks who has come meanwhile, and greets them. Throws Error (kMismatch) where somebody
  // stays who wants another group than this.
  void look();
  // To all that have been greeted, and will be heard by those who are greeted later only if it is
  // said later.
  void broadcast(const std::string& word);
  // Tells all that have come, or come in the next second or in the time given, that there will be
  // no group. Returns when they have read it, or after a few seconds: the store may be this
  // process's, which is about to end.
  static constexpr std::chrono::milliseconds kLinger{1000}, kLongLinger{5000};
  void refuse(const Error& error, std::chrono::milliseconds linger = kLinger);
  // All that have come are in the group now: those who come later are to be in another one.
  void close();
  // When the group is made: waits until so many others have left, and erases what the set-up has
  // written. `is_quiet`: those of this host have left, too.
  void clear(int num_others, bool is_quiet) noexcept;

  // The others: the next word of rank 0. Throws the Error by which it refuses.
  std::optional<std::string> next_broadcast();
  bool knows_rank_0() const { return knows_rank_0_; }
  // Where rank 0 has ended, nobody hears more from it: tells all why. Does nothing if it lives.
  void refuse_for_rank_0(const Error& error);

  // To be thrown where what stands in the store is no record of this build.
  Error not_understood(const std::string& writer) const;

  // This rank reads nothing more in the store. With `waits` it returns when rank 0 has erased what
  // is to be erased, or has ended; without, rank 0 erases nothing.
  void leave(bool waits) noexcept;
  // Whether rank 0 has refused the group, by what this rank has read.
  bool is_refused() const { return is_refused_; }

  // To and from ranks that this one has met. Letters of those who have been replaced are dropped.
  void connect(int rank, std::int64_t ticket);
  void send(int to, const std::string& text);
  std::vector<SetupMessage> receive();
  void publish(int place, const std::string& text);
  std::optional<std::string> published_by(int rank, int place);

  // Sleeps a little; less, after something has come. Throws Error when one of the awaited ranks
  // will not come (kPeerDied), or when time is up (kTimeout). True ten times per second.
  bool pause(const std::vector<int>& awaited);

 private:
  void read_tickets();
  [[noreturn]] void refused(const Error& refusal);
  bool await_others(const std::function<bool(std::int64_t left, Clock::duration waited)>& is_over);
  void erase_all(bool have_left);
  void erase_letters_and_shown();
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
  std::vector<Stranger> strangers_;  // who want another group
  std::set<std::int64_t> welcomed_;  // tickets, by rank 0
  bool knows_rank_0_ = false;        // it has greeted
  bool is_refused_ = false;
  bool has_looked_for_letters_ = false;
  std::vector<int> shown_;  // places
  int num_broadcasts_ = 0;  // of rank 0, said or heard, or not meant for this one
  std::chrono::microseconds sleep_;
  Clock::time_point look_next_{};
};

// A rank has failed before others could know of it, or of why: takes another ticket, to say so.
void decline(Store& store, const GroupConfig& config, const std::exception_ptr& error) noexcept;

}  // namespace ringcomm
