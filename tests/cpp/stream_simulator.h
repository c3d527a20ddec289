// Streams, events and NCCL's groups of sends and receives, simulated for all ranks together.
//
// What is enqueued runs later, in a random order that stream order and events permit:
//   - A stream does one thing at a time, in order. wait() waits for what record() had recorded when
//     wait() was called; an event that was never recorded holds no stream up.
//   - A kernel reads its inputs at one time and writes its output at a later one.
//   - A group begins when its stream comes to it. The k-th send from p to q in a communicator
//     belongs to the k-th receive of q from p; the two happen together, once both their groups have
//     begun. A group ends when all its messages have happened.
// Streams run at speeds of their own, chosen again for every schedule, so that some race far ahead.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/streams/executor.h"

namespace simulated {

class Simulator {
 public:
  explicit Simulator(std::uint64_t seed);
  ~Simulator();

  int new_stream(std::string name);
  int new_event();

  void record(int event, int stream);
  void wait(int stream, int event);
  // Two moments of one kernel.
  void kernel(int stream, std::function<void()> read, std::function<void()> write);

  struct Message {
    bool is_send;
    int comm, rank, peer;
    std::byte* data;
    std::size_t nbytes;
    int partner = -1;
    bool begun = false, done = false;
  };
  void group(int stream, std::vector<Message> messages);

  // Runs until nothing is left. Throws std::runtime_error, naming what is stuck, for a deadlock.
  void run();

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

  void push(int stream, Operation operation);
  void pair(Message& message, int index);
  // Does something of the stream's first operation, if anything can be done.
  bool advance(Stream& stream);

  // One message of the group, if one can happen now or all have.
  bool transfer(const Operation& group);

  int advance_any(std::size_t& unfinished);
  std::string describe(const Stream& stream) const;

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

  Api(Simulator& simulator, int rank, int dropped);
  ~Api();

  void group_start();
  void send(const std::byte* data, std::size_t nbytes, int peer, Comm comm, Stream stream);
  void recv(std::byte* data, std::size_t nbytes, int peer, Comm comm, Stream stream);
  // As NCCL does, which launches a kernel for each communicator of a group.
  void group_end();

  void reduce(const ringcomm::Reduction& reduction, const void* const* inputs, int num_inputs,
              void* output, std::size_t count, Stream stream);
  void copy(void* to, const void* from, std::size_t nbytes, Stream stream);
  void record(Event event, Stream stream) { simulator_.record(event, stream); }
  void wait(Stream stream, Event event, ringcomm::streams::Wait why);
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
