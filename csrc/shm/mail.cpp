#include "shm/mail.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/deadline.h"
#include "core/thread.h"

namespace ringcomm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kYieldForMessage{200};
// How often the background looks by itself, and how many times after the last message.
constexpr milliseconds kLightSleep{1};
constexpr int kLightSleeps = 10;
// A thread that waits for what may come from other hosts and from this one cannot sleep on both.
constexpr microseconds kLongestNap{10'000}, kLongestNapAcrossHosts{1000};
constexpr int kPartOfIdle = 10;

void complete(Message& message) {
  // Taken out, as what it holds may hold the message.
  error_of([&] { std::exchange(message.on_done, nullptr)(message.error); });
  message.done.store(true, std::memory_order_release);
}

}  // namespace

std::string describe(const Message& message, const Members& members) {
  const bool send = message.kind == Message::Kind::kSend;
  std::string text = send ? "send" : "recv";
  text += "(count=" + std::to_string(users_count(message.users, message.count)) +
          ", dtype=" + name(ElementType(message.dtype, message.users)) +
          ", tag=" + std::to_string(message.tag) + ")";
  text += send ? " to " : " from ";
  return text + (message.peer == kAnySource ? "any rank" : members.name(message.peer));
}

Mail::Mail(Group& group)
    : group_(group),
      outgoing_(group.world_size),
      incoming_(group.world_size),
      boxes_(group.world_size) {
  if (group.remote_hosts() != nullptr) remote_mailbox_ = group.remote_hosts()->make_mailbox();
}

Mail::~Mail() {
  at_the_end([this] { close("the group is closed"); });
  if (background_.joinable()) background_.join();
}

void Mail::open(const Message& message) {
  for (const int peer : group_.remote()) {
    if (message.peer == peer || message.peer == kAnySource) remote_mailbox_->open(peer);
  }
  if (message.kind == Message::Kind::kSend && group_.is_local(message.peer)) {
    group_.segment().make_mail_box(message.peer);
  }
}

void Mail::post(std::shared_ptr<Message> message) {
  Done done;
  const Message* const posted = message.get();
  {
    std::lock_guard lock(mutex_);
    const bool is_send = message->kind == Message::Kind::kSend;
    // With the lock: what passes before a close is ended by it.
    try {
      if (group_.broken()) group_.check(describe(*message, group_.members));
      open(*message);
      // To refuse needs no thread: that there is none may be the reason.
      if (!message->is_awaited && message->refused.empty()) provide_background();
      if (is_send) {
        outgoing_[message->peer].queue.push_back(message);
      } else {
        recvs_.push_back(message);
      }
    } catch (...) {
      message->on_done = nullptr;  // what it holds may hold the message
      throw;
    }
    ++pending_;
    ++num_posted_;
    group_.note_made();
    guarded([&] {
      if (is_send) {
        push(message->peer, done);
      } else if (claim_early(message, done)) {
        recvs_.pop_back();
      } else if (message->peer != kAnySource) {
        pull(message->peer, done);
      }
      return cross();
    });
    if (!posted->is_awaited) leave_to_background();
  }
  report(done, posted);
}

bool Mail::is_idle() {
  const std::lock_guard lock(mutex_);
  return pending_ == 0;
}

// With the lock, as nothing must be written meanwhile.
void Mail::give_back() {
  const std::lock_guard lock(mutex_);
  if (pending_ == 0) group_.segment().give_back_mail_boxes();
}

void Mail::refuse(Message::Kind kind, int peer, std::int32_t tag, const std::string& reason,
                  const Deadline& deadline) {
  auto message = std::make_shared<Message>();
  message->kind = kind;
  message->peer = peer;
  message->tag = tag;
  message->dtype = DType::kUInt8;
  message->refused = cut_at_character(reason, group_.geometry().mail_slot_nbytes);
  message->data = reinterpret_cast<std::byte*>(message->refused.data());
  message->count = message->refused.size();
  message->deadline = deadline;
  message->on_done = [](std::exception_ptr) {};
  post(std::move(message));
}

bool Mail::wait(const Message& message, milliseconds patience) {
  const Clock::time_point end = rough_now() + patience;
  Clock::time_point look_next = rough_now() + kLookEvery;
  Pauses pauses;
  int spins = group_.spins();
  std::unique_lock lock(mutex_);
  const bool crosses = message.peer != kAnySource && !group_.is_local(message.peer);
  ++waiters_;
  while (!message.done.load(std::memory_order_acquire) && rough_now() < end) {
    Done done;
    const bool moved = guarded([&] { return progress(done); });
    if (!done.empty()) {
      --waiters_;
      leave_to_background();
      lock.unlock();
      report(done, &message);
      lock.lock();
      ++waiters_;
    }
    lock.unlock();
    if (rough_now() >= look_next) {
      look_next += kLookEvery;
      leave_if_interrupted();
    }
    if (moved) {
      pauses.reset();
    } else if (spins > 0) {
      --spins;
    } else {
      pause(pauses, crosses);
    }
    lock.lock();
  }
  --waiters_;
  leave_to_background();
  return message.done.load(std::memory_order_acquire);
}

// Yields, or sleeps on a rank's own bell, which all rings that it may wait for come to.
void Mail::pause(Pauses& pauses, bool crosses) {
  const Clock::time_point now = Clock::now();
  if (pauses.since == Clock::time_point{}) pauses.since = now;
  const bool is_contended = group_.contention().is_likely(now);
  const auto idle = std::chrono::duration_cast<microseconds>(now - pauses.since);
  if (idle < kYieldForMessage && !is_contended) return group_.contention().yield(now);
  const microseconds longest =
      std::min(remote_mailbox_ ? kLongestNapAcrossHosts : kLongestNap,
               std::max(idle / kPartOfIdle, is_contended ? Contention::kSleep : microseconds(0)));
  if (crosses) {
    group_.remote_hosts()->sleep(longest);
  } else if (pauses.listening) {
    pauses.listening->sleep(longest);
  } else {
    pauses.listening.emplace(group_.segment().state(group_.rank).mail_bell);  // to look once more
  }
}

// With the lock. A thread that posts mostly waits at once, and to wake a thread takes longer than a
// message: if there are many messages the background comes by itself. But what is to cross to
// other hosts does not go on without it.
void Mail::leave_to_background() noexcept {
  if (!busy() || waiters_ > 0) return;
  guarded([&] {
    provide_background();
    return true;
  });
  if (std::exchange(sleeps_deeply_, false) || remote_mailbox_) wake_.notify_one();
}

void Mail::provide_background() {
  if (!background_.joinable()) background_ = start_thread([this] { run_background(); });
}

template <typename Step>
bool Mail::guarded(Step step) noexcept {
  try {
    return step();
  } catch (...) {
    damaged_ = true;
    look_next_ = {};  // all that is pending ends
    group_.fail_with(std::current_exception(), [] { return std::string("send and recv"); });
    return true;
  }
}

// The message goes on without this thread.
void Mail::leave_if_interrupted() {
  try {
    check_interrupt();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --waiters_;
    leave_to_background();
    throw;
  }
}

void Mail::drain(milliseconds longest) {
  if (!remote_mailbox_) return;
  const Clock::time_point end = Clock::now() + longest;
  std::unique_lock lock(mutex_);
  while (!(remote_mailbox_->is_empty() && group_.remote_hosts()->flushed()) && Clock::now() < end) {
    cross();
    lock.unlock();
    group_.remote_hosts()->sleep(microseconds(100));
    lock.lock();
  }
}

void Mail::close(const std::string& reason) {
  Done done;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    auto end = [&](const std::shared_ptr<Message>& message) {
      finish(message, error_of([&] {
               throw Error(ErrorKind::kClosed, group_.members.name(group_.rank) + " in " +
                                                   describe(*message, group_.members) + ": " +
                                                   reason);
             }),
             done);
    };
    for (Outgoing& outgoing : outgoing_) {
      for (const auto& message : outgoing.queue) end(message);
      outgoing.queue.clear();
    }
    for (const auto& message : recvs_) end(message);
    recvs_.clear();
    for (Incoming& incoming : incoming_) {
      const Arriving& arriving = incoming.message;
      if (arriving.into) end(arriving.into);
      if (arriving.early && arriving.early->claimed_by) end(arriving.early->claimed_by);
      incoming.message = {};
    }
    early_.clear();
  }
  wake_.notify_one();
  ring(group_.rank);
  // All on this thread: the caller may be about to end, and they do not wait for what has ended.
  while (!done.empty()) complete(*done.take());
}

// Whether anything can still come or go. What has begun to arrive is taken to its end though no
// receive waits for it, so that its sender need not wait either.
bool Mail::busy() const {
  const bool is_sending =
      remote_mailbox_ && !(remote_mailbox_->is_empty() && group_.remote_hosts()->flushed());
  if (is_sending && !group_.broken()) return true;
  return pending_ > 0 || std::ranges::any_of(incoming_, [](const Incoming& incoming) {
           return incoming.message.any();
         });
}

// Between hosts.
bool Mail::cross() {
  if (!remote_mailbox_) return false;
  group_.remote_hosts()->progress();
  return remote_mailbox_->step();
}

bool Mail::progress(Done& done) {
  bool moved = cross();
  for (int peer = 0; peer < group_.world_size; ++peer) {
    if (!outgoing_[peer].queue.empty()) moved |= push(peer, done);
    if (!recvs_.empty() || incoming_[peer].message.any()) moved |= pull(peer, done);
  }
  if (moved) cross();
  if (rough_now() >= look_next_) expire(done);
  return moved;
}

// Gives the receive an early message, if there is one for it; one that is still arriving is
// promised to it.
bool Mail::claim_early(const std::shared_ptr<Message>& recv, Done& done) {
  for (auto it = early_.begin(); it != early_.end(); ++it) {
    if (it->claimed_by || it->tag != recv->tag) continue;
    if (recv->peer != kAnySource && recv->peer != it->source) continue;
    const std::exception_ptr error =
        check_fits(*recv, it->source, {it->dtype, it->users}, it->nbytes, it->refused);
    recv->peer = it->source;
    recv->under_way = true;
    if (!it->complete && !error) {
      it->claimed_by = recv;
      return true;
    }
    if (!it->complete) {
      notify_sender(it->source, *recv);
      Arriving& arriving = incoming_[it->source].message;
      arriving.early = nullptr;
      arriving.discard = true;
    } else if (!error) {
      hand_over(*it, recv, done);
      return true;
    }
    early_.erase(it);
    finish(recv, error, done);
    return true;
  }
  return false;
}

// A message that is all there, to the receive that it fits.
void Mail::hand_over(Early& early, std::shared_ptr<Message> recv, Done& done) {
  if (early.nbytes > 0) std::memcpy(recv->data, early.data.data(), early.nbytes);
  early_.remove_if([&](const Early& other) { return &other == &early; });
  finish(recv, nullptr, done);
}

void Mail::finish(const std::shared_ptr<Message>& message, std::exception_ptr error, Done& done) {
  --pending_;
  if (message.get() == published_) {
    published_ = nullptr;
    group_.segment().state(group_.rank).mail.since.store(0, std::memory_order_release);
  }
  message->error = std::move(error);
  done.add(message);
}

void Mail::report(Done& done, const Message* own) {
  std::shared_ptr<Message> here;
  while (!done.empty()) {
    std::shared_ptr<Message> message = done.take();
    if (message.get() == own) {
      here = std::move(message);
      continue;
    }
    try {
      completions_.run([message] { complete(*message); });
    } catch (...) {
      complete(*message);  // no thread, or no memory: here, rather than never
    }
  }
  if (here) complete(*here);
}

void Mail::run_background() {
  Pauses pauses;
  std::uint64_t num_posted = 0;
  int light_sleeps = 0;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!busy() || waiters_ > 0) {
      pauses.reset();
      if (std::exchange(num_posted, num_posted_) != num_posted_) light_sleeps = kLightSleeps;
      if (--light_sleeps >= 0) {
        wake_.wait_for(lock, kLightSleep);
      } else {
        sleeps_deeply_ = true;
        wake_.wait(lock, [&] { return stop_ || !sleeps_deeply_; });
      }
      continue;
    }
    Done done;
    if (guarded([&] { return progress(done); })) {
      pauses.reset();
    }
    lock.unlock();
    if (!done.empty()) {
      report(done, nullptr);
    } else {
      pause(pauses, /*crosses=*/false);
    }
    lock.lock();
  }
}

}  // namespace ringcomm::shm
