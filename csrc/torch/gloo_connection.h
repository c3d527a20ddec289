// A connection to one peer by gloo: a group of the two ranks, which makes its own way through
// messages. c10d's works of gloo report their end only to a thread that waits for them. So each
// stream and direction that is used has a thread, which waits for its messages in the order they
// were posted.
//
// gloo does not say how long a message is. A message whose length the receiver does not know is
// sent as two: a header of 64 bytes and, unless they fit in there, its bytes. Both are posted
// ahead, so neither waits for the other.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "hosts/engine.h"

namespace ringcomm {

class GlooConnection {
 public:
  // Waits for the peer, and for the connection; throws why there will be none.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      std::shared_ptr<const std::atomic<bool>> closed)>;

  // `peer`: its rank in the group of two. `on_end` is called whenever a request ends.
  GlooConnection(Connect connect, int peer, std::function<void()> on_end);
  // Ends what is pending.
  ~GlooConnection();

  void post(bool is_send, links::Tag tag, std::byte* data, std::size_t nbytes,
            links::Request& request);
  void cancel(links::Request& request);
  // Whether sends are pending, which end with the connection.
  bool is_sending();
  std::string failure();

 private:
  struct Posted {
    links::Request* request;
    bool is_send;
    links::Tag tag;
    std::byte* data;
    std::size_t nbytes;
    at::Tensor header = {};
    c10::intrusive_ptr<c10d::Work> header_work = {}, bytes_work = {};
    bool under_way = false;  // it may be: its header has gone, or come, or it has none
    std::exception_ptr error = {};

    bool has_header() const;
    bool has_bytes() const;
    bool started() const { return header_work || bytes_work; }
    int tag_of(bool is_bytes) const;
  };
  // Posted on one stream in one direction.
  struct Direction {
    std::list<Posted> messages = {};
    std::thread waiter = {};
    std::condition_variable changed = {};  // for the waiter
  };

  void connect(const Connect& connect);
  void start(Posted& message);
  void wait_for_messages(Direction& direction);
  bool wait_for(Posted& message);
  void abort(Posted& message);
  void finish(Posted& message, links::Request::State state);
  template <typename Why>
  void lose(Why why) noexcept;

  const int peer_;
  const std::function<void()> on_end_;
  const std::shared_ptr<std::atomic<bool>> closed_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;                           // guards all that follows
  std::condition_variable finished_;           // a message is finished, which cancel() waits for
  c10::intrusive_ptr<c10d::Backend> backend_;  // null: not connected yet
  bool is_lost_ = false;
  std::string failure_;  // why
  std::map<std::pair<std::uint8_t, bool>, Direction> directions_;
  std::thread connector_;
};

}  // namespace ringcomm
