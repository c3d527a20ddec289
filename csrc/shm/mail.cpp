#include "shm/mail.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringcomm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kYieldFor{200};
constexpr microseconds kLongestSleep{1000};

// How long to sleep after having been idle since `since`; zero: only yield.
microseconds nap(Clock::time_point since) {
  const auto idle = std::chrono::duration_cast<microseconds>(Clock::now() - since);
  return idle < kYieldFor ? microseconds(0) : std::min(kLongestSleep, idle / 10);
}

void complete(Message& message, std::exception_ptr error) {
  // Taken out, as what it holds may hold the message.
  std::exchange(message.on_done, nullptr)(error);
  message.done.store(true, std::memory_order_release);
}

}  // namespace

std::string describe(const Message& message) {
  const bool send = message.kind == Message::Kind::kSend;
  std::string text = send ? "send" : "recv";
  text += "(count=" + std::to_string(message.count) + ", dtype=" + name(message.dtype) +
          ", tag=" + std::to_string(message.tag) + ")";
  text += send ? " to " : " from ";
  return text + (message.peer == kAnySource ? "any rank" : "rank " + std::to_string(message.peer));
}

Mail::Mail(Group& group) : group_(group), sends_(group.world_size), arriving_(group.world_size) {}

Mail::~Mail() {
  close("the group is closed");
  if (background_.joinable()) background_.join();
}

void Mail::post(std::shared_ptr<Message> message) {
  Done done;
  const Message* const posted = message.get();
  {
    std::lock_guard lock(mutex_);
    // With the lock: what passes before a close is ended by it.
    try {
      if (group_.broken()) group_.check(describe(*message));
    } catch (const Error&) {
      message->on_done = nullptr;  // what it holds may hold the message
      throw;
    }
    ++pending_;
    if (message->kind == Message::Kind::kSend) {
      sends_[message->peer].push_back(message);
      push(message->peer, done);
    } else if (!claim_early(message, done)) {
      recvs_.push_back(message);
      if (message->peer != kAnySource) pull(message->peer, done);
    }
    if (pending_ > 0 && !background_.joinable()) {
      background_ = std::thread([this] { run_background(); });
    }
  }
  wake_.notify_one();
  report(done, posted);
}

bool Mail::wait(const Message& message, milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  Clock::time_point since = Clock::now();
  int spins = group_.spins;
  std::unique_lock lock(mutex_);
  ++waiters_;
  while (!message.done.load(std::memory_order_acquire) && Clock::now() < end) {
    Done done;
    const bool moved = progress(done);
    if (!done.empty()) {
      --waiters_;
      const bool more = pending_ > 0;
      lock.unlock();
      if (more) wake_.notify_one();
      report(done, &message);
      lock.lock();
      ++waiters_;
    }
    lock.unlock();
    if (moved) {
      since = Clock::now();
    } else if (spins > 0) {
      --spins;
    } else if (const microseconds sleep = nap(since); sleep.count() > 0) {
      std::this_thread::sleep_for(sleep);
    } else {
      sched_yield();
    }
    lock.lock();
  }
  --waiters_;
  lock.unlock();
  wake_.notify_one();
  return message.done.load(std::memory_order_acquire);
}

void Mail::close(const std::string& reason) {
  Done done;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    auto end = [&](const std::shared_ptr<Message>& message) {
      finish(message,
             make_error(ErrorKind::kClosed, "rank " + std::to_string(group_.rank) + " in " +
                                                describe(*message) + ": " + reason),
             done);
    };
    for (auto& queue : sends_) {
      for (const auto& message : queue) end(message);
      queue.clear();
    }
    for (const auto& message : recvs_) end(message);
    recvs_.clear();
    for (Arriving& arriving : arriving_) {
      if (arriving.into) end(arriving.into);
      if (arriving.early && arriving.early->claimed_by) end(arriving.early->claimed_by);
      arriving = {};
    }
    early_.clear();
  }
  wake_.notify_all();
  // All on this thread: the caller may be about to end, and they do not wait for what has ended.
  for (const auto& [message, error] : done) complete(*message, error);
}

bool Mail::progress(Done& done) {
  bool moved = false;
  for (int peer = 0; peer < group_.world_size; ++peer) {
    if (!sends_[peer].empty()) moved |= push(peer, done);
    if (!recvs_.empty() || arriving_[peer].any()) moved |= pull(peer, done);
  }
  if (Clock::now() >= look_next_) expire(done);
  return moved;
}

bool Mail::push(int peer, Done& done) {
  bool moved = false;
  MailEdge& edge = group_.segment().mail_edge(group_.rank, peer);
  const std::size_t capacity = group_.geometry().mail_slot_nbytes;
  auto& queue = sends_[peer];
  while (!queue.empty()) {
    const std::uint64_t position = edge.posted.load(std::memory_order_relaxed);
    if (position - edge.taken.load(std::memory_order_acquire) >= kMailSlots) break;
    const std::shared_ptr<Message> message = queue.front();
    MailSlot& slot = group_.segment().mail_slot(group_.rank, peer, position);
    slot.message_nbytes = message->nbytes();
    slot.offset = message->moved;
    slot.nbytes = std::min(capacity, message->nbytes() - message->moved);
    slot.tag = message->tag;
    slot.dtype = message->dtype;
    if (slot.nbytes > 0) std::memcpy(slot.data(), message->data + message->moved, slot.nbytes);
    message->moved += slot.nbytes;
    message->under_way = true;
    edge.posted.store(position + 1, std::memory_order_release);
    moved = true;
    if (message->moved == message->nbytes()) {
      queue.pop_front();
      finish(message, nullptr, done);
    }
  }
  return moved;
}

bool Mail::pull(int peer, Done& done) {
  bool moved = false;
  MailEdge& edge = group_.segment().mail_edge(peer, group_.rank);
  for (;;) {
    const std::uint64_t position = edge.taken.load(std::memory_order_relaxed);
    if (edge.posted.load(std::memory_order_acquire) == position) break;
    MailSlot& slot = group_.segment().mail_slot(peer, group_.rank, position);
    if (!arriving_[peer].any() && !accept(peer, slot, done)) break;
    take(peer, slot, done);
    edge.taken.store(position + 1, std::memory_order_release);
    moved = true;
  }
  return moved;
}

// Decides where the message that begins with slot `first` goes. False: it stays where it is,
// because nobody waits for a message of this peer.
bool Mail::accept(int peer, MailSlot& first, Done& done) {
  Arriving& arriving = arriving_[peer];
  bool awaited = false;
  for (auto it = recvs_.begin(); it != recvs_.end(); ++it) {
    const std::shared_ptr<Message> recv = *it;
    if (recv->peer != peer && recv->peer != kAnySource) continue;
    awaited = true;
    if (recv->tag != first.tag) continue;
    recvs_.erase(it);
    if (auto error = check_fits(*recv, peer, first.dtype, first.message_nbytes)) {
      arriving.discard = true;
      finish(recv, error, done);
    } else {
      recv->peer = peer;
      recv->under_way = true;
      arriving.into = recv;
    }
    return true;
  }
  if (!awaited) return false;
  early_.push_back({.source = peer,
                    .tag = first.tag,
                    .dtype = first.dtype,
                    .data = std::vector<std::byte>(first.message_nbytes)});
  arriving.early = &early_.back();
  return true;
}

void Mail::take(int peer, MailSlot& slot, Done& done) {
  Arriving& arriving = arriving_[peer];
  std::byte* to = arriving.into               ? arriving.into->data
                  : arriving.early != nullptr ? arriving.early->data.data()
                                              : nullptr;
  if (to != nullptr && slot.nbytes > 0) std::memcpy(to + slot.offset, slot.data(), slot.nbytes);
  arriving.moved += slot.nbytes;
  if (arriving.into) arriving.into->moved = arriving.moved;
  if (arriving.moved < slot.message_nbytes) return;

  const Arriving complete = std::exchange(arriving, {});
  if (complete.into) finish(complete.into, nullptr, done);
  if (complete.early == nullptr) return;
  complete.early->complete = true;
  if (const std::shared_ptr<Message> recv = complete.early->claimed_by) {
    complete.early->claimed_by = nullptr;
    claim_early(recv, done);
  }
}

// Gives the receive an early message, if there is one for it; one that is still arriving is
// promised to it.
bool Mail::claim_early(const std::shared_ptr<Message>& recv, Done& done) {
  for (auto it = early_.begin(); it != early_.end(); ++it) {
    if (it->claimed_by || it->tag != recv->tag) continue;
    if (recv->peer != kAnySource && recv->peer != it->source) continue;
    recv->peer = it->source;
    recv->under_way = true;
    if (!it->complete) {
      it->claimed_by = recv;
      return true;
    }
    std::exception_ptr error = check_fits(*recv, it->source, it->dtype, it->data.size());
    if (!error && !it->data.empty()) std::memcpy(recv->data, it->data.data(), it->data.size());
    early_.erase(it);
    finish(recv, error, done);
    return true;
  }
  return false;
}

std::exception_ptr Mail::check_fits(const Message& recv, int source, DType dtype,
                                    std::size_t nbytes) {
  if (dtype == recv.dtype && nbytes == recv.nbytes()) return nullptr;
  return make_error(ErrorKind::kMismatch,
                    "rank " + std::to_string(group_.rank) + " in " + describe(recv) + ": rank " +
                        std::to_string(source) +
                        " sent count=" + std::to_string(nbytes / element_size(dtype)) +
                        ", dtype=" + name(dtype) + ". The message was dropped.");
}

void Mail::finish(const std::shared_ptr<Message>& message, std::exception_ptr error, Done& done) {
  --pending_;
  done.emplace_back(message, error);
}

void Mail::report(Done& done, const Message* own) {
  Done::value_type here;
  for (auto& [message, error] : done) {
    if (message.get() == own) {
      here = {std::move(message), error};
    } else {
      completions_.run([message = std::move(message), error] { complete(*message, error); });
    }
  }
  done.clear();
  if (here.first) complete(*here.first, here.second);
}

void Mail::run_background() {
  Clock::time_point since = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!stop_ && (pending_ == 0 || waiters_ > 0)) {
      wake_.wait(lock, [&] { return stop_ || (pending_ > 0 && waiters_ == 0); });
      since = Clock::now();
    }
    if (stop_) return;
    Done done;
    if (progress(done)) since = Clock::now();
    if (!done.empty()) {
      lock.unlock();
      report(done, nullptr);
      lock.lock();
      continue;
    }
    const microseconds sleep = nap(since);
    if (sleep.count() > 0) {
      wake_.wait_for(lock, sleep);
    } else {
      lock.unlock();
      sched_yield();
      lock.lock();
    }
  }
}

}  // namespace ringcomm::shm
