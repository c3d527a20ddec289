// send and recv between two ranks of a group: messages with tags, matched in order.
//
// A message from rank i to rank j travels through the pair's own mail slots, so no message can
// stand in the way of another pair's. Sends to one peer go out in the order they were posted. A
// receive takes the first message with its tag (from its peer, or from anybody); messages that
// arrive before one somebody waits for are put aside in memory.
//
// Posting never blocks. Operations progress on whichever thread waits for one of them, and on a
// background thread while nobody waits. A completion may run a user's callbacks, which may wait for
// other messages: so posting or waiting for a message runs its own completion at most, leaving
// progress to the background meanwhile, and all others run on threads for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shm/completions.h"
#include "shm/group.h"
#include "shm/idle.h"

namespace ringcomm::shm {

inline constexpr int kAnySource = -1;

struct Message {
  enum class Kind { kSend, kRecv };

  Kind kind;
  int peer;  // a receive may name kAnySource; then the rank it came from, once it is done
  std::int32_t tag;
  DType dtype;
  std::byte* data;
  std::size_t count;  // elements
  Deadline deadline;
  // Called once, on the thread that completed the operation; null error: success.
  std::function<void(std::exception_ptr error)> on_done;

  std::size_t moved = 0;   // bytes
  bool under_way = false;  // the first slot has been written or read
  std::atomic<bool> done{false};

  std::size_t nbytes() const { return count * element_size(dtype); }
};

class Mail {
 public:
  explicit Mail(Group& group);
  ~Mail();
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  // Throws if the group is broken, and forgets on_done. A send may be done when post returns.
  void post(std::shared_ptr<Message> message);

  // Drives all operations until this one is done. Returns false if `patience` ends before.
  bool wait(const Message& message, std::chrono::milliseconds patience);

  // Ends all pending operations with an error; later posts are the group's to refuse.
  void close(const std::string& reason);

 private:
  using Done = std::vector<std::pair<std::shared_ptr<Message>, std::exception_ptr>>;

  // A message that came before its receive.
  struct Early {
    int source;
    std::int32_t tag;
    DType dtype;
    std::vector<std::byte> data;
    bool complete = false;
    std::shared_ptr<Message> claimed_by = nullptr;
  };

  // What becomes of the message now arriving from one peer.
  struct Arriving {
    std::shared_ptr<Message> into;  // a receive that fits
    Early* early = nullptr;         // nobody waits for it yet
    std::size_t moved = 0;
    bool discard = false;  // its receive has failed
    bool any() const { return into || early != nullptr || discard; }
  };

  bool progress(Done& done);
  bool push(int peer, Done& done);
  bool pull(int peer, Done& done);
  bool accept(int peer, MailSlot& first, Done& done);
  void take(int peer, MailSlot& slot, Done& done);
  bool claim_early(const std::shared_ptr<Message>& recv, Done& done);
  // In mail_expiry.cpp.
  void expire(Done& done);
  std::exception_ptr why_hopeless(const Message& message, Clock::time_point now);
  bool has_unread(const Message& message);
  void finish(const std::shared_ptr<Message>& message, std::exception_ptr error, Done& done);
  std::exception_ptr check_fits(const Message& recv, int source, DType dtype, std::size_t nbytes);
  // Without the lock, as completions may post again. The completion of `own`, if it is among them,
  // runs here.
  void report(Done& done, const Message* own);
  void run_background();

  Group& group_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::deque<std::shared_ptr<Message>>> sends_;  // per peer, in order
  std::list<std::shared_ptr<Message>> recvs_;                // in the order they were posted
  std::list<Early> early_;
  std::vector<Arriving> arriving_;  // per peer
  std::size_t pending_ = 0;
  int waiters_ = 0;
  bool stop_ = false;
  Clock::time_point look_next_{};
  Completions completions_;
  std::thread background_;
};

std::string describe(const Message& message);

}  // namespace ringcomm::shm
