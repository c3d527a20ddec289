// How every collective begins: each rank announces its call, and, when it is small, its whole
// input.
//
// Invariant: a rank announces call number s + 1 only after it is done with call s, and ends call s
// only after it has seen every rank's announcement of s. So when any rank announces s + 2, no rank
// reads announcement s any more, and two announcements per rank, used in turn, are enough: no
// acknowledgement is ever written.
//
// Since all ranks see all calls before any data moves, calls that do not fit together are an error
// on every rank, and the group goes on unharmed. If a rank's own arguments are wrong, it
// announces that, with the reason, and does not wait: it makes up for that at its next call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shm/backoff.h"
#include "shm/group.h"
#include "shm/layout.h"

namespace ringcomm::shm {

// Thrown where a call has to wait for longer than its caller does.
struct NotYet {};

class Exchange {
 public:
  explicit Exchange(Group& group) : group_(group), may_announce_(group.world_size) {}

  // The number of collectives announced so far.
  std::uint64_t announced() const { return announced_; }

  // Begins a collective and numbers its call; throws if the group is broken. The payload (at most
  // geometry.eager_nbytes) is written between begin and announce, to where begin says, or room for
  // one of so many bytes; announce makes both visible to the peers. What fails in between has not
  // taken the number: the next call that begins has it.
  std::byte* begin(Call& call, const Deadline& deadline);
  std::byte* room(std::size_t payload_nbytes);
  void announce(const Call& call, std::size_t payload_nbytes = 0,
                PayloadKind payload_kind = PayloadKind::kInput);

  // Announces that this rank makes no call for the reason given, which the others will throw.
  void refuse(const std::string& reason, const Deadline& deadline);
  // Whether that would not wait.
  bool may_refuse();

  // Waits until all ranks have announced; throws kMismatch if a call differs from ours.
  void await_all(const Deadline& deadline);
  // While this lives, await_all() waits for some microseconds at most, and then throws NotYet.
  class Impatience {
   public:
    explicit Impatience(Exchange& exchange) : exchange_(exchange) {
      exchange_.is_impatient_ = true;
    }
    ~Impatience() { exchange_.is_impatient_ = false; }
    Impatience(const Impatience&) = delete;
    Impatience& operator=(const Impatience&) = delete;

   private:
    Exchange& exchange_;
  };
  bool is_impatient() const { return is_impatient_; }
  // Goes on with the call that was announced, in place of beginning one.
  void resume(Call& call) const { call.sequence = sequence_; }
  // From here on the time is that of the transfer. Not for calls that are so small that to look at
  // the clock would slow them.
  void begin_transfer() { transfer_began_ = Clock::now(); }

  int world_size() const { return group_.world_size; }
  Call call_of(int rank) { return read_once(announcement(rank).call); }
  const std::byte* payload_of(int rank);
  PayloadKind payload_kind(int rank) { return announcement(rank).payload_kind; }
  bool any_publishes(PayloadKind what);

  // The collective is done on this rank. raises: by an error that every rank has its own of.
  void end(bool raises = false);

  // Whether the last call that was announced has not ended yet.
  bool is_under_way() const { return announced_ != ended_ && !owes_wait_; }
  // Whether every rank raises for the last call: it was refused, or ended so.
  bool raises() const { return owes_wait_ || raises_; }

 private:
  Announcement& announcement(int rank) { return group_.segment().announcement(rank, sequence_); }
  bool announced(int rank) {
    return (may_announce_[rank] || look_for(rank)) &&
           announcement(rank).sequence.load(std::memory_order_acquire) == sequence_;
  }
  // Whether the rank has made its announcements, which must not be read before.
  bool look_for(int rank) {
    may_announce_[rank] = group_.segment().made(rank, Area::kAnnouncements);
    return may_announce_[rank] != 0;
  }
  void await_announcements(const Deadline& deadline);
  std::string refusals();
  [[noreturn]] void mismatch();
  Error damaged(int rank);

  Group& group_;
  std::vector<char> may_announce_;
  std::uint64_t sequence_ = 0;  // of the call that began last
  std::uint64_t announced_ = 0, ended_ = 0;
  bool raises_ = false;
  RingAllocator rotation_;              // of this rank's payloads
  std::uint32_t payload_at_ = kBehind;  // of this call
  std::uint64_t nbytes_ = 0;            // of all calls
  bool owes_wait_ = false;              // this rank's last call was refused
  bool is_impatient_ = false;
  Call own_;                  // the last call
  Clock::duration waited_{};  // in it
  std::optional<Clock::time_point> transfer_began_;
  std::uint64_t digest_ = 0;  // of it
};

}  // namespace ringcomm::shm
