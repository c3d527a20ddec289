#include "torch/gloo_connection.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <vector>

#include "core/thread.h"
#include "torch/python.h"

namespace ringcomm {
namespace {

using links::Request;

// What goes ahead of a message's bytes, or instead of them.
struct Header {
  std::uint64_t nbytes;
  std::byte bytes[56];
};
static_assert(sizeof(Header) == 64);

// A time-out of gloo's would end the connection. Deadlines are kept by cancelling messages instead.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

// c10d's tags are positive ints. Numbers that share their last bits are far from each other.
constexpr int kNumberBits = 26;

}  // namespace

bool GlooConnection::Posted::has_header() const {
  return tag.stream < links::kFirstExactStream || nbytes == 0;
}

// Or has room for them.
bool GlooConnection::Posted::has_bytes() const {
  return !has_header() || nbytes > sizeof(Header::bytes);
}

int GlooConnection::Posted::tag_of(bool is_bytes) const {
  const int number = static_cast<int>(tag.number & ((1U << kNumberBits) - 1));
  return (tag.stream << kNumberBits | number) << 1 | (is_bytes ? 1 : 0);
}

GlooConnection::GlooConnection(Connect connect, int peer, std::function<void()> on_end)
    : peer_(peer), on_end_(std::move(on_end)) {
  connector_ = start_thread([this, connect = std::move(connect)] { this->connect(connect); });
}

// why() returns the text; where memory is short there is none.
template <typename Why>
void GlooConnection::lose(Why why) noexcept {
  if (!is_lost_) error_of([&] { failure_ = why(); });
  is_lost_ = true;
  for (auto& [of, direction] : directions_) {
    for (Posted& message : direction.messages) abort(message);
    direction.changed.notify_one();
  }
}

GlooConnection::~GlooConnection() {
  {
    std::lock_guard lock(mutex_);
    *closed_ = true;
    lose([] { return std::string("the connection was closed"); });
  }
  connector_.join();
  for (auto& [of, direction] : directions_) {
    if (direction.waiter.joinable()) direction.waiter.join();
  }
}

void GlooConnection::connect(const Connect& connect) {
  c10::intrusive_ptr<c10d::Backend> backend;
  const std::exception_ptr error = error_of([&] { backend = connect(closed_); });
  std::lock_guard lock(mutex_);
  if (error) return lose([&] { return reason_of(error); });
  backend_ = std::move(backend);
  for (auto& [of, direction] : directions_) {
    for (Posted& message : direction.messages) {
      if (!is_lost_) start(message);
    }
    direction.changed.notify_one();
  }
}

void GlooConnection::post(bool is_send, links::Tag tag, std::byte* data, std::size_t nbytes,
                          Request& request) {
  std::lock_guard lock(mutex_);
  if (is_lost_) {
    request.state.store(Request::State::kFailed, std::memory_order_release);
    return;
  }
  Direction& direction = directions_[{tag.stream, is_send}];
  if (!direction.waiter.joinable()) {
    direction.waiter = start_thread([this, &direction] { wait_for_messages(direction); });
  }
  direction.messages.push_back({&request, is_send, tag, data, nbytes});
  request.handle = this;
  request.state.store(Request::State::kPending, std::memory_order_release);
  if (backend_) start(direction.messages.back());
  direction.changed.notify_one();
}

// Hands it to gloo, which blocks for nothing.
void GlooConnection::start(Posted& message) {
  // Works that end when the caller's profiler has gone would write to its memory.
  const at::DisableRecordFunctionGuard unseen;
  const auto hand_over = [&](const at::Tensor& tensor, bool is_bytes) {
    std::vector<at::Tensor> tensors{tensor};
    const int tag = message.tag_of(is_bytes);
    return message.is_send ? backend_->send(tensors, peer_, tag)
                           : backend_->recv(tensors, peer_, tag);
  };
  try {
    if (message.has_header()) {
      message.header = at::zeros({sizeof(Header)}, at::kByte);
      if (message.is_send) {
        Header& content = *static_cast<Header*>(message.header.data_ptr());
        content.nbytes = message.nbytes;
        if (!message.has_bytes() && message.nbytes > 0) {
          std::memcpy(content.bytes, message.data, message.nbytes);
        }
      }
      message.header_work = hand_over(message.header, false);
    }
    if (message.has_bytes()) {
      message.under_way = !message.has_header();
      const auto nbytes = static_cast<std::int64_t>(message.nbytes);
      message.bytes_work = hand_over(at::from_blob(message.data, {nbytes}, at::kByte), true);
    }
  } catch (...) {
    lose([] { return reason_of(std::current_exception()); });
  }
}

void GlooConnection::wait_for_messages(Direction& direction) {
  std::unique_lock lock(mutex_);
  while (true) {
    direction.changed.wait(
        lock, [&] { return *closed_ || (!direction.messages.empty() && (backend_ || is_lost_)); });
    if (direction.messages.empty()) return;  // closed
    Posted& message = direction.messages.front();
    bool done = false;
    if (message.started()) {
      lock.unlock();
      done = wait_for(message);
      lock.lock();
    }
    if (message.error) lose([&] { return reason_of(message.error); });
    finish(message, done ? Request::State::kDone : Request::State::kFailed);
    direction.messages.pop_front();
    finished_.notify_all();
  }
}

// Whether it has succeeded. It takes no lock, because no other thread touches what is used here.
bool GlooConnection::wait_for(Posted& message) {
  try {
    if (!message.has_header()) {
      message.request->nbytes = message.nbytes;
      return message.bytes_work->wait(kForever);
    }
    if (!message.header_work->wait(kForever)) return false;
    {
      std::lock_guard lock(mutex_);
      message.under_way = true;
    }
    if (message.is_send) return !message.bytes_work || message.bytes_work->wait(kForever);
    const Header& content = *static_cast<const Header*>(message.header.data_ptr());
    if (content.nbytes > message.nbytes) return false;
    message.request->nbytes = content.nbytes;
    if (content.nbytes > sizeof(content.bytes)) return message.bytes_work->wait(kForever);
    if (content.nbytes > 0) std::memcpy(message.data, content.bytes, content.nbytes);
    return true;
  } catch (...) {
    message.error = std::current_exception();
  }
  return false;
}

void GlooConnection::finish(Posted& message, Request::State state) {
  // First of all, as gloo may touch the bytes as long as there are works.
  message.header_work.reset();
  message.bytes_work.reset();
  message.request->state.store(state, std::memory_order_release);
  on_end_();
}

void GlooConnection::abort(Posted& message) {
  if (message.header_work) message.header_work->abort();
  if (message.bytes_work) message.bytes_work->abort();
}

void GlooConnection::cancel(Request& request) {
  std::unique_lock lock(mutex_);
  if (!request.pending()) return;
  for (auto& [of, direction] : directions_) {
    const auto found =
        std::find_if(direction.messages.begin(), direction.messages.end(),
                     [&](const Posted& message) { return message.request == &request; });
    if (found == direction.messages.end()) continue;
    if (found == direction.messages.begin()) {
      // Gloo cannot stop in the middle of a message.
      if (found->under_way) {
        lose([] { return std::string("a message was cancelled that was under way"); });
      }
      if (!backend_ && !is_lost_) {
        finish(*found, Request::State::kFailed);
        direction.messages.pop_front();
        return;
      }
      abort(*found);
      finished_.wait(lock, [&] { return !request.pending(); });
    } else {
      finish(*found, Request::State::kFailed);
      direction.messages.erase(found);
    }
    return;
  }
}

bool GlooConnection::is_sending() {
  std::lock_guard lock(mutex_);
  return std::any_of(directions_.begin(), directions_.end(), [](const auto& item) {
    const auto& [of, direction] = item;
    return of.second && !direction.messages.empty();
  });
}

std::string GlooConnection::failure() {
  std::lock_guard lock(mutex_);
  return is_lost_ && failure_.empty() ? "there is not enough memory" : failure_;
}

}  // namespace ringcomm
