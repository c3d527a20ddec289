// The network of the tests' engine: what is under way between ranks that are threads of this
// process, and what a test has broken.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "hosts/engine.h"
#include "shm/remote_hosts.h"

namespace ranks {

using ringcomm::Clock;
using ringcomm::links::Engine;
using ringcomm::links::Request;
using ringcomm::links::Tag;

struct NetworkOptions {
  unsigned seed = 1;
  std::chrono::microseconds longest_delay{0};
  std::chrono::milliseconds connects_after{0};  // nothing arrives sooner
  std::size_t eager_limit = 8192;  // what is larger waits on its sender until it is received
  bool in_order = false;           // receives of a stream are done in the order of posting
  int late_stream = -1;            // all of which takes so much longer
  std::chrono::milliseconds late_by{0};
};

// What the engines of one group share. All of it is under one lock.
class MemoryNetwork : public std::enable_shared_from_this<MemoryNetwork> {
 public:
  static std::shared_ptr<MemoryNetwork> make(NetworkOptions options = {});
  explicit MemoryNetwork(NetworkOptions options);
  ~MemoryNetwork();

  std::unique_ptr<Engine> engine(int rank);
  ringcomm::shm::ConnectHosts connect_hosts();

  // The rank finds its connection to the peer lost, as `why` says. The peer finds nothing, unless
  // that is said, too; but between them nothing moves any more.
  void lose(int rank, int peer, const std::string& why);

  // All other ranks find their connection to that one lost, now and later.
  void decline(int rank, const std::string& why);

  // Messages of this stream and of those behind it, so far.
  std::size_t num_sent_from(std::uint8_t stream);

  // What that rank sends from now on arrives no sooner than after that time.
  void hold(int from, Clock::duration time);

  // Nothing that is sent from now on arrives, without an error.
  void silence(int from, int to);

 private:
  friend class MemoryEngine;

  using Pair = std::pair<int, int>;  // of a rank and another one
  // Receiver, sender, stream, number.
  using Key = std::tuple<int, int, std::uint8_t, std::uint64_t>;

  struct Message {
    std::span<const std::byte> bytes;
    std::vector<std::byte> copied;  // of a small one
    Request* sender;                // of a large one
    Request* copying = nullptr;     // of a small one that is not reported done yet
    bool on_its_way = false;
    Clock::time_point due = {};
  };
  struct Receive {
    std::span<std::byte> room;
    Request* request;
    std::uint64_t posted;  // counts
    bool came = false;
    bool fits = true;
  };

  void use(const Key& key, bool is_send);
  void spread_failures(int rank);
  bool cut(int from, int to) const;

  const NetworkOptions options_;
  const Clock::time_point connects_at_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937 random_;
  std::uint64_t num_posted_ = 0;
  std::set<std::pair<Key, bool>> used_;
  std::map<Key, Message> messages_;
  std::map<Key, Receive> receives_;
  std::set<Request*> taken_;  // large sends whose bytes were received
  std::map<Pair, std::string> lost_;
  std::map<int, std::string> declined_;  // by rank
  std::set<Pair> silent_;
  std::map<int, Clock::time_point> held_until_;  // by sender
  std::set<Pair> connected_;                     // receiver, sender: a message was sent
};

}  // namespace ranks
