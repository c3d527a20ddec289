// send and recv between two ranks of a group: messages with tags, matched in order.
//
// A message from rank i to rank j travels through a mail box of theirs, which i makes for the first
// one, so no message can stand in the way of another pair's. Sends to one peer go out in the order
// they were posted. A receive takes the first message with its tag (from its peer, or from any
// rank); messages that arrive before an awaited one are put aside in memory.
//
// A receive that wants another size or dtype than what comes refuses it. Then both ends raise, the
// rest of the message stays where it is, and the next one follows; but a send whose last slot is
// written is done, and its sender does not learn of the refusal.
//
// If a rank's own arguments are refused, it posts that in place of its message. The rank at the
// other end raises the reason, in the same way, and the messages behind it match as if it had been
// one.
//
// Posting never blocks. Operations progress on whichever thread waits for one of them, and on a
// background thread while none waits. A completion may run a user's callbacks, which may wait for
// other messages: so posting or waiting for a message runs its own completion at most, leaving
// progress to the background meanwhile, and all others run on threads for them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/workers.h"
#include "reduce/publish.h"
#include "shm/backoff.h"
#include "shm/doorbell.h"
#include "shm/group.h"

namespace ringcomm::shm {

inline constexpr int kAnySource = -1;

struct Message {
  enum class Kind { kSend, kRecv };

  Kind kind;
  int peer;  // a receive may name kAnySource; then the rank it came from, once it is done
  std::int32_t tag;
  DType dtype;
  std::byte* data;
  std::size_t count;  // elements of `dtype`
  UsersDType users = {};
  Deadline deadline;
  std::string refused = {};  // not empty: why there is no data, see Mail::refuse
  bool is_awaited = false;   // the caller waits for it at once: the background is not needed
  // Called once, on the thread that completed the operation; null error: success.
  std::function<void(std::exception_ptr error)> on_done;

  std::size_t moved = 0;   // bytes
  bool under_way = false;  // the first slot has been written or read
  std::atomic<bool> done{false};
  // Once it has ended: how, and the message that ended after it. See Mail::Done.
  std::exception_ptr error = nullptr;
  std::shared_ptr<Message> ended_next = nullptr;

  std::size_t nbytes() const { return count * element_size(dtype); }
};

class Mail {
 public:
  explicit Mail(Group& group);
  ~Mail();
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  // A send may be done when post returns. Throws Error if the group is broken or a thread is needed
  // that cannot be had, and std::bad_alloc; then the message is not posted, and on_done is
  // forgotten.
  void post(std::shared_ptr<Message> message);

  // In place of a message to or from `peer` (or from any), for which this rank's arguments are
  // wrong. Does not wait for the peer. Throws if the group is broken.
  void refuse(Message::Kind kind, int peer, std::int32_t tag, const std::string& reason,
              const Deadline& deadline);

  // Drives all operations until this one is done. Returns false if `patience` ends before.
  bool wait(const Message& message, std::chrono::milliseconds patience);

  // Whether all messages that this rank has posted are done.
  bool is_idle();
  // The memory of boxes that are empty, if it is.
  void give_back();

  // Lets what has been written cross to other hosts, for that long.
  void drain(std::chrono::milliseconds longest);

  // Ends all pending operations with an error; later posts are the group's to refuse.
  void close(const std::string& reason);

 private:
  // Messages that have ended, in that order. To end one takes no memory: a message that has been
  // sent cannot be taken back.
  class Done {
   public:
    bool empty() const { return !first_; }
    void add(std::shared_ptr<Message> message) {
      Message* const added = message.get();
      (first_ ? last_->ended_next : first_) = std::move(message);
      last_ = added;
    }
    std::shared_ptr<Message> take() {
      std::shared_ptr<Message> message = std::move(first_);
      first_ = std::move(message->ended_next);
      return message;
    }

   private:
    std::shared_ptr<Message> first_;
    Message* last_ = nullptr;
  };

  // To one peer.
  struct Outgoing {
    std::deque<std::shared_ptr<Message>> queue;
    std::uint64_t posted = 0;  // slots; what is shared may be damaged
    std::uint64_t number = 1;  // of the message in front
    StoreChoice stores;
  };

  // A message that came before its receive.
  struct Early {
    int source;
    std::int32_t tag;
    DType dtype;
    UsersDType users;
    std::size_t nbytes;
    std::string refused;          // not empty: why its sender's arguments were
    std::vector<std::byte> data;  // as far as it has come
    bool complete = false;
    std::shared_ptr<Message> claimed_by = nullptr;
  };

  // What becomes of the message now arriving from one peer.
  struct Arriving {
    std::shared_ptr<Message> into = nullptr;  // a receive that fits
    Early* early = nullptr;                   // no receive is posted for it yet
    std::size_t nbytes = 0;
    std::size_t moved = 0;
    bool discard = false;  // its receive has failed
    bool any() const { return into || early != nullptr || discard; }
  };

  struct Incoming {
    Arriving message;
    std::uint64_t number = 0;  // of that message, or of the last one
    std::uint64_t taken = 0;   // slots
  };

  // Whether the peer has ever sent this rank anything: before, there is no box to look into.
  bool has_box(int from) {
    return boxes_[from] || (boxes_[from] = group_.segment().mail_box_made(from, group_.rank));
  }
  // Before anything is sent to the peer, or received from it (or from any).
  void open(const Message& message);
  bool busy() const;
  bool cross();
  bool progress(Done& done);
  // Runs step(). If that fails itself (memory, mostly), the group breaks, because it is unknown
  // what has moved by then.
  template <typename Step>
  bool guarded(Step step) noexcept;
  bool claim_early(const std::shared_ptr<Message>& recv, Done& done);
  void hand_over(Early& early, std::shared_ptr<Message> recv, Done& done);
  void finish(const std::shared_ptr<Message>& message, std::exception_ptr error, Done& done);
  // Without the lock, as completions may post again. The completion of `own`, if it is among them,
  // runs here.
  void report(Done& done, const Message* own);
  void run_background();
  // Throws Error (kSystem) if there is none and none can be made.
  void provide_background();
  void leave_to_background() noexcept;
  // The pauses of a thread that finds nothing to do, one after the other.
  struct Pauses {
    Clock::time_point since{};
    std::optional<DoorbellWaiter> listening;
    void reset() {
      since = {};
      listening.reset();
    }
  };
  // crosses: what it waits for comes from another host.
  void pause(Pauses& pauses, bool crosses);
  // Wakes the peer, as there is something new in a mail box of its and this rank's.
  void ring(int peer) { group_.segment().state(peer).mail_bell.ring(); }
  void leave_if_interrupted();

  // In mail_messages.cpp.
  bool push(int peer, Done& done);
  bool pull(int peer, Done& done);
  bool is_next(const Incoming& incoming, const MailSlot& header) const;
  bool accept(int peer, const MailSlot& first, const std::byte* data, Done& done);
  void take(int peer, const MailSlot& header, const std::byte* data, Done& done);
  void notify_sender(int peer, const Message& recv);
  std::exception_ptr refusal(const Message& send, const MailEdge& edge);
  std::exception_ptr check_fits(const Message& recv, int source, const ElementType& type,
                                std::size_t nbytes, const std::string& refused);
  std::exception_ptr damaged(int from, int to, const char* what);

  void expire(Done& done);
  void publish_oldest(Clock::time_point now);
  std::exception_ptr why_over(const Message& message, Clock::time_point now);
  std::exception_ptr why_hopeless(const Message& message, Clock::time_point now);
  std::string why_no_rank_sends();
  std::string unreceived(const Message& recv) const;
  bool has_left(int peer) {
    return group_.segment().state(peer).liveness.closed.load(std::memory_order_acquire) !=
           Closed::kNo;
  }
  bool has_unread(int from);
  bool has_unread(const Message& message);
  void drop(Arriving& message);

  Group& group_;
  std::unique_ptr<RemoteMailbox> remote_mailbox_;  // none if there is but one host
  std::mutex mutex_;
  std::condition_variable wake_;               // the background
  std::vector<Outgoing> outgoing_;             // per peer
  std::list<std::shared_ptr<Message>> recvs_;  // in the order they were posted
  std::list<Early> early_;
  std::vector<Incoming> incoming_;  // per peer
  std::vector<char> boxes_;         // per peer: what has_box() has seen
  bool damaged_ = false;
  const Message* published_ = nullptr;  // the one that others can see waiting
  std::size_t pending_ = 0;
  std::uint64_t num_posted_ = 0;
  bool sleeps_deeply_ = false;  // the background, until it is woken
  int waiters_ = 0;
  bool stop_ = false;
  Clock::time_point look_next_{};
  std::size_t looked_at_ = 0;  // peers, so far
  Completions completions_;
  std::thread background_;
};

// "send(count=3, dtype=int32, tag=0) to rank 2"
std::string describe(const Message& message, const Members& members);

}  // namespace ringcomm::shm
