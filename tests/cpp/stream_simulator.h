// Streams, events and NCCL's groups of sends and receives, simulated for all ranks together.
//
// What is enqueued runs later, in a random order that stream order and events permit:
//   - A stream does one thing at a time, in order. wait() waits for what record() had recorded when
//     wait() was called; an event that was never recorded holds nobody up.
//   - A kernel reads its inputs at one time and writes its output at a later one.
//   - A group begins when its stream comes to it. The k-th send from p to q in a communicator
//     belongs to the k-th receive of q from p; the two happen together, once both their groups have
//     begun. A group ends when all its messages have happened.
// Streams run at speeds of their own, chosen anew for every schedule, so that some race far ahead.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reduce/host.h"
#include "streams/api.h"
#include "streams/executor.h"

namespace simulated {

class Simulator {
 public:
  explicit Simulator(std::uint64_t seed) : random_(seed) {}

  int new_stream(std::string name) {
    streams_.push_back({.name = std::move(name), .slowness = kSlowness[random_() % 3]});
    return static_cast<int>(streams_.size()) - 1;
  }
  int new_event() {
    events_.push_back(kNever);
    return static_cast<int>(events_.size()) - 1;
  }

  void record(int event, int stream) {
    events_[event] = num_records_++;
    done_.push_back(false);
    push(stream, {.kind = kRecord, .record = events_[event]});
  }
  void wait(int stream, int event) {
    if (events_[event] != kNever) push(stream, {.kind = kWait, .record = events_[event]});
  }
  // Two moments of one kernel.
  void kernel(int stream, std::function<void()> read, std::function<void()> write) {
    push(stream, {.kind = kKernel, .read = std::move(read), .write = std::move(write)});
  }

  struct Message {
    bool is_send;
    int comm, rank, peer;
    std::byte* data;
    std::size_t nbytes;
    int partner = -1;
    bool begun = false, done = false;
  };
  void group(int stream, std::vector<Message> messages) {
    Operation operation{.kind = kGroup};
    for (Message& message : messages) {
      const int index = static_cast<int>(messages_.size());
      operation.messages.push_back(index);
      pair(message, index);
      messages_.push_back(message);
    }
    push(stream, std::move(operation));
  }

  // Runs until nothing is left. Throws std::runtime_error, naming what is stuck, for a deadlock.
  void run() {
    std::size_t unfinished = 0;
    for (const Stream& stream : streams_) unfinished += !stream.queue.empty();
    int failures = 0;
    while (unfinished > 0) {
      Stream& stream = streams_[random_() % streams_.size()];
      if (stream.queue.empty() || random_() % stream.slowness != 0) {
        if (++failures > 100) failures = advance_any(unfinished);
        continue;
      }
      if (advance(stream)) failures = 0;
      if (stream.queue.empty()) --unfinished;
    }
  }

 private:
  static constexpr std::array<unsigned, 3> kSlowness = {1, 4, 64};
  static constexpr int kNever = -1;

  enum Kind { kRecord, kWait, kKernel, kGroup };
  struct Operation {
    Kind kind;
    int record = kNever;
    std::function<void()> read = nullptr, write = nullptr;
    std::vector<int> messages = {};
    bool begun = false;
  };
  struct Stream {
    std::string name;
    unsigned slowness;
    std::deque<Operation> queue = {};
  };

  void push(int stream, Operation operation) {
    streams_[stream].queue.push_back(std::move(operation));
  }

  void pair(Message& message, int index) {
    const int from = message.is_send ? message.rank : message.peer;
    const int to = message.is_send ? message.peer : message.rank;
    auto& [sends, recvs] = unpaired_[{message.comm, from, to}];
    auto& waiting = message.is_send ? recvs : sends;
    if (waiting.empty()) {
      (message.is_send ? sends : recvs).push_back(index);
      return;
    }
    message.partner = waiting.front();
    messages_[message.partner].partner = index;
    waiting.pop_front();
    if (messages_[message.partner].nbytes != message.nbytes) {
      throw std::runtime_error("rank " + std::to_string(from) + " sends rank " +
                               std::to_string(to) + " another number of bytes than it receives");
    }
  }

  // Does something of the stream's first operation, if anything can be done.
  bool advance(Stream& stream) {
    Operation& front = stream.queue.front();
    switch (front.kind) {
      case kRecord:
        done_[front.record] = true;
        break;
      case kWait:
        if (!done_[front.record]) return false;
        break;
      case kKernel:
        if (!front.begun) {
          front.read();
          return front.begun = true;
        }
        front.write();
        break;
      case kGroup:
        if (!front.begun) {
          for (const int index : front.messages) messages_[index].begun = true;
          return front.begun = true;
        }
        if (!transfer(front)) return false;
        for (const int index : front.messages) {
          if (!messages_[index].done) return true;
        }
    }
    stream.queue.pop_front();
    return true;
  }

  // One message of the group, if one can happen now or all have.
  bool transfer(const Operation& group) {
    const std::size_t n = group.messages.size();
    bool all_done = true;
    const std::size_t first = random_() % n;
    for (std::size_t i = 0; i < n; ++i) {
      Message& message = messages_[group.messages[(first + i) % n]];
      if (message.done) continue;
      all_done = false;
      if (message.partner < 0 || !messages_[message.partner].begun) continue;
      Message& partner = messages_[message.partner];
      const Message& send = message.is_send ? message : partner;
      const Message& recv = message.is_send ? partner : message;
      std::memcpy(recv.data, send.data, send.nbytes);
      message.done = partner.done = true;
      return true;
    }
    return all_done;
  }

  int advance_any(std::size_t& unfinished) {
    for (Stream& stream : streams_) {
      if (stream.queue.empty() || !advance(stream)) continue;
      if (stream.queue.empty()) --unfinished;
      return 0;
    }
    std::string stuck = "deadlock:";
    for (const Stream& stream : streams_) {
      if (!stream.queue.empty()) stuck += " " + stream.name + " in " + describe(stream) + ";";
    }
    throw std::runtime_error(stuck);
  }

  std::string describe(const Stream& stream) const {
    const Operation& front = stream.queue.front();
    if (front.kind == kWait) return "wait #" + std::to_string(front.record);
    if (front.kind != kGroup) return "a kernel";
    std::string text = "group";
    for (const int index : front.messages) {
      const Message& message = messages_[index];
      if (message.done) continue;
      text += message.is_send ? " send to " : " recv from ";
      text += std::to_string(message.peer);
    }
    return text;
  }

  std::mt19937_64 random_;
  std::vector<Stream> streams_;
  std::vector<int> events_;  // the last record of each
  std::vector<bool> done_;   // by record
  int num_records_ = 0;
  std::vector<Message> messages_;
  std::map<std::tuple<int, int, int>, std::array<std::deque<int>, 2>> unpaired_;
};

// One rank's calls, for the executor. `dropped`: a kind of wait that is left out, or -1.
class Api {
 public:
  using Stream = int;
  using Event = int;
  using Comm = int;

  Api(Simulator& simulator, int rank, int dropped)
      : simulator_(simulator), rank_(rank), dropped_(dropped) {}

  void group_start() { group_.clear(); }
  void send(const std::byte* data, std::size_t nbytes, int peer, Comm comm, Stream stream) {
    group_[stream].push_back({true, comm, rank_, peer, const_cast<std::byte*>(data), nbytes});
  }
  void recv(std::byte* data, std::size_t nbytes, int peer, Comm comm, Stream stream) {
    group_[stream].push_back({false, comm, rank_, peer, data, nbytes});
  }
  // As NCCL does, which launches a kernel for each communicator of a group.
  void group_end() {
    for (auto& [stream, messages] : std::exchange(group_, {})) {
      simulator_.group(stream, std::move(messages));
    }
  }

  void reduce(const ringcomm::Reduction& reduction, const void* const* inputs, int num_inputs,
              void* output, std::size_t count, Stream stream) {
    auto result = std::make_shared<std::vector<std::byte>>(count * element_size(reduction.dtype));
    std::vector<const void*> pointers(inputs, inputs + num_inputs);
    simulator_.kernel(
        stream,
        [=] {
          void* to = result->data();
          reduce_host(reduction, pointers.data(), num_inputs, to, {}, count);
        },
        [=] { std::memcpy(output, result->data(), result->size()); });
  }
  void copy(void* to, const void* from, std::size_t nbytes, Stream stream) {
    auto data = std::make_shared<std::vector<std::byte>>(nbytes);
    simulator_.kernel(
        stream, [=] { std::memcpy(data->data(), from, nbytes); },
        [=] { std::memcpy(to, data->data(), nbytes); });
  }
  void record(Event event, Stream stream) { simulator_.record(event, stream); }
  void wait(Stream stream, Event event, ringcomm::streams::Wait why) {
    if (static_cast<int>(why) != dropped_) simulator_.wait(stream, event);
  }
  void push_range(const ringcomm::Pipeline&, int) {}
  void pop_range() {}

 private:
  Simulator& simulator_;
  const int rank_;
  const int dropped_;
  std::map<Stream, std::vector<Simulator::Message>> group_;
};
static_assert(ringcomm::streams::StreamApi<Api>);

}  // namespace simulated
