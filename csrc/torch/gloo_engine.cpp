// Bytes between hosts by gloo: how two ranks find each other and connect, and what goes over the
// connection.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/process.h"
#include "core/status.h"
#include "core/thread.h"
#include "hosts/address.h"
#include "hosts/engine.h"
#include "torch/links.h"
#include "torch/python.h"
#include "torch/store_adapter.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

using Closed = std::shared_ptr<const std::atomic<bool>>;
using links::Request;
using links::Tag;

// What goes ahead of a message's bytes, or instead of them.
struct Header {
  std::uint64_t nbytes;
  std::byte bytes[56];
};
static_assert(sizeof(Header) == 64);

// A time-out of gloo's would end the connection. Deadlines are kept by cancelling messages instead.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
// For what has ended already. Gloo takes none for no time-out at all.
constexpr std::chrono::milliseconds kAtOnce{1};

// c10d's tags are positive ints. Numbers that share their last bits are far from each other.
constexpr int kNumberBits = 26;

// ---- A connection to one peer -------------------------------------------------------------------

// A connection to one peer by gloo: a group of the two ranks, which makes its own way through
// messages. c10d's works of gloo report their end only to a thread that waits for them. So each
// stream and direction that is used has a thread, which waits for its messages in the order they
// were posted.
//
// gloo does not say how long a message is. A message whose length the receiver does not know is
// sent as two: a header of 64 bytes and, unless they fit in there, its bytes. Both are posted
// ahead, so neither waits for the other.
class GlooConnection {
 public:
  // Waits for the peer, and for the connection; throws why there will be none.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(Closed closed)>;

  // `peer`: its rank in the group of two. `on_end` is called whenever a request ends.
  GlooConnection(Connect connect, int peer, std::function<void()> on_end)
      : peer_(peer), on_end_(std::move(on_end)) {
    connector_ = start_thread([this, connect = std::move(connect)] { this->connect(connect); });
  }

  // Ends what is pending.
  ~GlooConnection() {
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

  void post(bool is_send, Tag tag, std::byte* data, std::size_t nbytes, Request& request) {
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

  void cancel(Request& request) {
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

  // Whether sends are pending, which end with the connection.
  bool is_sending() {
    std::lock_guard lock(mutex_);
    return std::any_of(directions_.begin(), directions_.end(), [](const auto& item) {
      const auto& [of, direction] = item;
      return of.second && !direction.messages.empty();
    });
  }

  std::string failure() {
    std::lock_guard lock(mutex_);
    return is_lost_ && failure_.empty() ? "there is not enough memory" : failure_;
  }

 private:
  struct Posted {
    Request* request;
    bool is_send;
    Tag tag;
    std::byte* data;
    std::size_t nbytes;
    at::Tensor header = {};
    c10::intrusive_ptr<c10d::Work> header_work = {}, bytes_work = {};
    bool under_way = false;  // it may be: its header has gone, or come, or it has none
    std::exception_ptr error = {};

    bool has_header() const { return tag.stream < links::kFirstExactStream || nbytes == 0; }

    // Or has room for them.
    bool has_bytes() const { return !has_header() || nbytes > sizeof(Header::bytes); }

    // All of it: a part may have failed for want of memory.
    bool started() const { return (header_work || !has_header()) && (bytes_work || !has_bytes()); }

    int tag_of(bool is_bytes) const {
      const int number = static_cast<int>(tag.number & ((1U << kNumberBits) - 1));
      return (tag.stream << kNumberBits | number) << 1 | (is_bytes ? 1 : 0);
    }
  };
  // Posted on one stream in one direction.
  struct Direction {
    std::list<Posted> messages = {};
    std::thread waiter = {};
    std::condition_variable changed = {};  // for the waiter
  };

  void connect(const Connect& connect) {
    c10::intrusive_ptr<c10d::Backend> backend;
    const std::exception_ptr error = error_of([&] { backend = connect(closed_); });
    std::lock_guard lock(mutex_);
    if (error) return lose([&] { return reason_of(error); });
    if (is_lost_) return;
    backend_ = std::move(backend);
    for (auto& [of, direction] : directions_) {
      for (Posted& message : direction.messages) {
        if (!is_lost_) start(message);
      }
      direction.changed.notify_one();
    }
  }

  // Hands it to gloo, which blocks for nothing.
  void start(Posted& message) {
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

  void wait_for_messages(Direction& direction) {
    std::unique_lock lock(mutex_);
    while (true) {
      direction.changed.wait(lock, [&] {
        return *closed_ || (!direction.messages.empty() && (backend_ || is_lost_));
      });
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

  // Whether it has succeeded. No other thread touches what is used here, but for under_way.
  bool wait_for(Posted& message) {
    try {
      if (!message.has_header()) {
        message.request->nbytes = message.nbytes;
        return wait_for(*message.bytes_work);
      }
      if (!wait_for(*message.header_work)) return false;
      {
        std::lock_guard lock(mutex_);
        message.under_way = true;
      }
      if (message.is_send) return !message.bytes_work || wait_for(*message.bytes_work);
      const Header& content = *static_cast<const Header*>(message.header.data_ptr());
      if (content.nbytes > message.nbytes) return false;
      message.request->nbytes = content.nbytes;
      if (content.nbytes > sizeof(content.bytes)) return wait_for(*message.bytes_work);
      if (content.nbytes > 0) std::memcpy(message.data, content.bytes, content.nbytes);
      return true;
    } catch (...) {
      message.error = std::current_exception();
    }
    return false;
  }

  // A peer that has sent its last message may close the connection before this thread has seen that
  // message. lose() then aborts the wait, which leaves what has come to the next wait.
  bool wait_for(c10d::Work& work) {
    if (work.wait(kForever)) return true;
    {
      const std::lock_guard lock(mutex_);
      if (!is_lost_ || *closed_) return false;
    }
    return work.wait(kAtOnce);
  }

  void abort(Posted& message) {
    if (message.header_work) message.header_work->abort();
    if (message.bytes_work) message.bytes_work->abort();
  }

  void finish(Posted& message, Request::State state) {
    // First of all, as gloo may touch the bytes as long as there are works.
    message.header_work.reset();
    message.bytes_work.reset();
    message.request->state.store(state, std::memory_order_release);
    on_end_();
  }

  // why() returns the text; where memory is short there is none. The peer sees that the connection
  // has ended as soon as no message holds it.
  template <typename Why>
  void lose(Why why) noexcept {
    if (!is_lost_) error_of([&] { failure_ = why(); });
    is_lost_ = true;
    for (auto& [of, direction] : directions_) {
      for (Posted& message : direction.messages) abort(message);
      direction.changed.notify_one();
    }
    backend_.reset();
  }

  const int peer_;
  const std::function<void()> on_end_;
  const std::shared_ptr<std::atomic<bool>> closed_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;                           // guards all that follows
  std::condition_variable finished_;           // a message is finished, which cancel() waits for
  c10::intrusive_ptr<c10d::Backend> backend_;  // null: not connected yet, or lost
  bool is_lost_ = false;
  std::string failure_;  // why
  std::map<std::pair<std::uint8_t, bool>, Direction> directions_;
  std::thread connector_;
};

// ---- The engine: a connection for each peer, made when it is first needed -----------------------

// How long two ranks that have both come may take to connect: gloo waits five times as long.
constexpr std::chrono::seconds kConnectTimeout{6};

// A group of gloo's with this rank alone: it has gloo's devices, on the interfaces that the user
// has chosen, and makes others. C++ code outside of torch can make none, as gloo's headers are not
// installed. Throws Error. `timeout`: of its calls.
c10::intrusive_ptr<c10d::Backend> make_gloo(std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  try {
    const py::module_ c10d = py::module_::import("torch._C._distributed_c10d");
    if (!py::hasattr(c10d, "ProcessGroupGloo")) {
      throw Error(ErrorKind::kLibrary, "this torch was built without gloo");
    }
    const py::object group =
        c10d.attr("ProcessGroupGloo")(c10d.attr("HashStore")(), 0, 1, py::cast(timeout));
    return group.cast<c10::intrusive_ptr<c10d::Backend>>();
  } catch (const py::error_already_set& error) {
    throw Error(ErrorKind::kLibrary, std::string("gloo cannot be used: ") + error.what());
  }
}

class GlooEngine : public links::Engine {
 public:
  GlooEngine(std::shared_ptr<Store> store, int rank)
      : gloo_(make_gloo(kConnectTimeout)), store_(std::move(store)), rank_(rank) {
    links::publish_address(*store_, rank_, "gloo", "");
  }

  ~GlooEngine() override {
    if (fork_guard_.is_here()) {
      links::withdraw_address(store_, rank_);
      return;
    }
    // A child has no threads that could be joined.
    for (auto& [peer, connection] : connections_) (void)connection.release();
    (void)gloo_.release();
  }

  std::string describe() const override { return "gloo"; }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    connection(peer).post(true, tag, const_cast<std::byte*>(bytes.data()), bytes.size(), request);
  }

  void recv(int peer, Tag tag, std::span<std::byte> room, Request& request) override {
    connection(peer).post(false, tag, room.data(), room.size(), request);
  }

  void cancel(Request& request) override {
    if (request.pending()) static_cast<GlooConnection*>(request.handle)->cancel(request);
  }

  // Gloo's own thread moves what there is.
  bool advance() override { return false; }
  bool flushed() override {
    std::lock_guard lock(mutex_);
    return std::none_of(connections_.begin(), connections_.end(),
                        [](const auto& item) { return item.second->is_sending(); });
  }

  void sleep(std::chrono::microseconds longest) override {
    std::unique_lock lock(ended_mutex_);
    ended_.wait_for(lock, longest, [&] { return std::exchange(has_ended_, false); });
  }

  std::string failure(int peer) override {
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(peer);
    return found == connections_.end() ? "" : found->second->failure();
  }

 private:
  GlooConnection& connection(int peer) {
    std::lock_guard lock(mutex_);
    std::unique_ptr<GlooConnection>& connection = connections_[peer];
    if (!connection) {
      connection = std::make_unique<GlooConnection>(
          [this, peer](const Closed& closed) { return connect_or_say_so(peer, closed); },
          /*peer=*/rank_ < peer ? 1 : 0,
          [this] {
            {
              std::lock_guard lock(ended_mutex_);
              has_ended_ = true;
            }
            ended_.notify_all();
          });
    }
    return *connection;
  }

  // The peer waits in the store for what this rank has not written.
  c10::intrusive_ptr<c10d::Backend> connect_or_say_so(int peer, const Closed& closed) {
    c10::intrusive_ptr<c10d::Backend> connected;
    const std::exception_ptr error =
        error_of([&] { connected = once_for_all([&] { return connect(peer, closed); }); });
    if (!error) return connected;
    if (!*closed) {
      at_the_end([&] {
        links::publish_failure(*store_, rank_,
                               "it could not connect to other hosts: " + what_of(error));
      });
    }
    std::rethrow_exception(error);
  }

  c10::intrusive_ptr<c10d::Backend> connect(int peer, const Closed& closed) {
    for (Poll poll = links::look_for_peer(); !links::find_address(*store_, peer, "gloo");
         poll.sleep()) {
      if (*closed) throw Error(ErrorKind::kClosed, "it has not come");
    }
    const auto [low, high] = std::minmax(rank_, peer);
    const std::string prefix =
        "link/gloo/" + std::to_string(low) + "-" + std::to_string(high) + "/";
    const auto check_peer = [store = store_, peer] { links::find_address(*store, peer, "gloo"); };
    const auto store = c10::make_intrusive<GlooStore>(store_, prefix, closed, check_peer);
    auto connected = run_detached([gloo = gloo_, store, rank = rank_ == low ? 0 : 1] {
      return gloo->merge(store, gloo->getBackendOptions(), rank, 2);
    });
    // Gloo connects to a peer that has gone in the meantime until its time is over.
    while (connected.wait_for(kLookEvery) != std::future_status::ready) {
      if (*closed) throw Error(ErrorKind::kClosed, "the connection was closed before it was made");
      once_more(check_peer);
    }
    return connected.get();
  }

  const ForkGuard fork_guard_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::shared_ptr<Store> store_;
  const int rank_;
  std::mutex ended_mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::mutex mutex_;  // of what follows
  std::map<int, std::unique_ptr<GlooConnection>> connections_;
};

}  // namespace

std::unique_ptr<links::Engine> make_gloo_engine(std::shared_ptr<Store> store, int rank, int) {
  return std::make_unique<GlooEngine>(std::move(store), rank);
}

}  // namespace ringcomm
