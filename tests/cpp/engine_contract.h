// What every engine promises (hosts/engine.h), as functions that all ranks of a group run, be they
// threads or processes, each with an engine that is new.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "hosts/engine.h"

namespace contract {

using namespace ringcomm::links;
using ringcomm::Clock;

// Long enough for the busiest machine: a test that needs it has failed.
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr std::uint8_t kLast = kStreams - 1;  // the stream of meetings
inline constexpr std::size_t kLarge = 4 << 20;       // bytes, more than any engine keeps for others

// A message and its bytes.
struct Message {
  std::vector<std::byte> bytes;
  Request request;
};

inline std::vector<std::byte> bytes_of(int from, int to, Tag tag, std::size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  const std::uint64_t start = from * 31 + to * 17 + tag.stream * 7 + tag.number * 101;
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = std::byte(start + i * 167 + (i >> 8) * 59);
  return bytes;
}

inline bool wait(Engine& engine, const Request& request) {
  const Clock::time_point end = Clock::now() + kPatience;
  while (request.pending() && Clock::now() < end) {
    engine.progress();
    if (request.pending()) engine.sleep(std::chrono::milliseconds(1));
  }
  CHECK(!request.pending());
  return !request.pending() && !request.failed();
}

inline void flush(Engine& engine) {
  const Clock::time_point end = Clock::now() + kPatience;
  while (!engine.flushed() && Clock::now() < end) engine.progress();
  CHECK(engine.flushed());
}

// The rank's part of one check.
class Rank {
 public:
  Rank(Engine& engine, int rank, int size) : engine(engine), rank(rank), size(size) {}

  Message& send(int peer, Tag tag, std::size_t nbytes) {
    Message& message = messages_.emplace_back();
    message.bytes = bytes_of(rank, peer, tag, nbytes);
    engine.send(peer, tag, message.bytes, message.request);
    return message;
  }

  Message& recv(int peer, Tag tag, std::size_t room) {
    Message& message = messages_.emplace_back();
    message.bytes.resize(room, std::byte{0xee});
    engine.recv(peer, tag, message.bytes, message.request);
    return message;
  }

  // That the receive comes to its end with what `peer` has sent with `nbytes`.
  void expect(Message& message, int peer, Tag tag, std::size_t nbytes) {
    CHECK(wait(engine, message.request));
    CHECK_EQ(message.request.nbytes, nbytes);
    std::vector<std::byte> wanted = bytes_of(peer, rank, tag, nbytes);
    wanted.resize(message.bytes.size(), std::byte{0xee});
    CHECK_WITH(message.bytes == wanted,
               "from " + std::to_string(peer) + " number " + std::to_string(tag.number));
  }

  // Returns when the peer has come here, too.
  void meet(int peer) {
    const Tag tag{kLast, meetings_++};
    Message& theirs = recv(peer, tag, 1);
    Message& own = send(peer, tag, 1);
    expect(theirs, peer, tag, 1);
    CHECK(wait(engine, own.request));
  }

  Engine& engine;
  const int rank;
  const int size;

 private:
  std::deque<Message> messages_;  // stay where they are
  std::uint64_t meetings_ = 0;
};

inline std::vector<std::uint64_t> shuffled(int count, int seed) {
  std::vector<std::uint64_t> numbers(count);
  for (int i = 0; i < count; ++i) numbers[i] = i;
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(seed));
  return numbers;
}

inline std::size_t size_of(std::uint64_t number) { return number * number * 97; }

// On three streams, one of them exact.
inline Tag tag_of(std::uint64_t number) {
  constexpr std::uint8_t kChosen[] = {0, 1, kFirstExactStream};
  return {kChosen[number % 3], number};
}

// Every rank sends to every other one, receives posted ahead; sent in another order than received.
inline void posted_ahead(Rank& rank) {
  constexpr int kCount = 40;
  std::vector<Message*> sends, receives;
  for (int peer = 0; peer < rank.size; ++peer) {
    if (peer == rank.rank) continue;
    for (const std::uint64_t n : shuffled(kCount, 1)) {
      receives.push_back(&rank.recv(peer, tag_of(n), size_of(n)));
    }
  }
  for (int peer = 0; peer < rank.size; ++peer) {
    if (peer == rank.rank) continue;
    for (const std::uint64_t n : shuffled(kCount, 2)) {
      sends.push_back(&rank.send(peer, tag_of(n), size_of(n)));
    }
  }
  auto receive = receives.begin();
  for (int peer = 0; peer < rank.size; ++peer) {
    if (peer == rank.rank) continue;
    for (const std::uint64_t n : shuffled(kCount, 1)) {
      rank.expect(**receive++, peer, tag_of(n), size_of(n));
    }
  }
  for (Message* message : sends) CHECK(wait(rank.engine, message->request));
}

// All sent before anything is posted for it.
inline void unexpected(Rank& rank) {
  constexpr int kCount = 20;
  const int peer = 1 - rank.rank;
  std::vector<Message*> sends;
  for (std::uint64_t n = 0; n < kCount; ++n) sends.push_back(&rank.send(peer, {1, n}, size_of(n)));
  sends.push_back(&rank.send(peer, {1, kCount}, kLarge));
  rank.meet(peer);
  CHECK(sends.back()->request.pending());  // nothing to put it in
  rank.meet(peer);                         // which has looked, too
  for (const std::uint64_t n : shuffled(kCount, rank.rank)) {
    rank.expect(rank.recv(peer, {1, n}, size_of(n)), peer, {1, n}, size_of(n));
  }
  rank.expect(rank.recv(peer, {1, kCount}, kLarge), peer, {1, kCount}, kLarge);
  for (Message* message : sends) CHECK(wait(rank.engine, message->request));
}

// Room for more than comes, and nothing at all.
inline void shorter_and_empty(Rank& rank) {
  const int peer = 1 - rank.rank;
  const std::size_t sizes[] = {0, 1, 0, 5000, 70000, 0, kLarge - 1};
  std::vector<Message*> receives, sends;
  std::uint64_t n = 0;
  for (const std::size_t nbytes : sizes) {
    receives.push_back(&rank.recv(peer, {0, n}, nbytes + 1000));
    receives.push_back(&rank.recv(peer, {kFirstExactStream, n++}, nbytes));
  }
  n = 0;
  for (const std::size_t nbytes : sizes) {
    sends.push_back(&rank.send(peer, {0, n}, nbytes));
    sends.push_back(&rank.send(peer, {kFirstExactStream, n++}, nbytes));
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    rank.expect(*receives[i], peer, {i % 2 == 0 ? std::uint8_t{0} : kFirstExactStream, i / 2},
                sizes[i / 2]);
  }
  for (Message* message : sends) CHECK(wait(rank.engine, message->request));
}

// A receive that is cancelled is at its end; what was sent for it hinders nothing later.
inline void cancelled_receive(Rank& rank) {
  const int peer = 1 - rank.rank;
  Message& never = rank.recv(peer, {0, 0}, 100);
  rank.engine.progress();
  CHECK(never.request.pending());
  rank.engine.cancel(never.request);
  CHECK(never.request.failed());
  rank.engine.cancel(never.request);  // again: nothing
  rank.meet(peer);
  Message& late = rank.send(peer, {0, 0}, 100);
  Message& next = rank.send(peer, {0, 1}, 100);
  rank.expect(rank.recv(peer, {0, 1}, 100), peer, {0, 1}, 100);
  CHECK(wait(rank.engine, next.request));
  rank.engine.cancel(late.request);  // if it still waits for its receive
  for (const std::byte byte : never.bytes) CHECK(byte == std::byte{0xee});
}

// A rank whose sends are flushed may do something else.
inline void flushed(Rank& rank) {
  if (rank.rank == 0) {
    for (std::uint64_t n = 0; n < 10; ++n) {
      CHECK(wait(rank.engine, rank.send(1, {0, n}, 1000).request));
    }
    flush(rank.engine);
  } else {
    for (std::uint64_t n = 0; n < 10; ++n) rank.expect(rank.recv(0, {0, n}, 1000), 0, {0, n}, 1000);
  }
}

// Threads of one rank, each with a stream.
inline void many_threads(Rank& rank) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&rank, t] {
      Rank own(rank.engine, rank.rank, rank.size);
      const int peer = 1 - rank.rank;
      const auto stream = static_cast<std::uint8_t>(t);
      for (std::uint64_t n = 0; n < 50; ++n) {
        const std::size_t nbytes = n % 10 == 9 ? 300000 : n * 13;
        Message& receive = own.recv(peer, {stream, n}, nbytes);
        Message& send = own.send(peer, {stream, n}, nbytes);
        own.expect(receive, peer, {stream, n}, nbytes);
        CHECK(wait(rank.engine, send.request));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Check {
  const char* name;
  int world_size;
  void (*run)(Rank&);
};
inline constexpr Check kChecks[] = {
    {"posted_ahead", 4, posted_ahead},
    {"unexpected", 2, unexpected},
    {"shorter_and_empty", 2, shorter_and_empty},
    {"cancelled_receive", 2, cancelled_receive},
    {"flushed", 2, flushed},
    {"many_threads", 2, many_threads},
};

// A rank that leaves flushes first: its peers may still wait for what it has sent.
inline void run(const Check& check, Rank& rank) {
  check.run(rank);
  flush(rank.engine);
}

// That everything pending for the peer fails, and what is posted later, and that this is said.
// `go` makes the peer go.
template <typename Go>
void lost_peer(Engine& engine, int rank, int peer, Go go) {
  Rank own(engine, rank, 2);
  CHECK(engine.failure(peer).empty());
  Message& receive = own.recv(peer, {0, 1000}, 100);
  Message& send = own.send(peer, {0, 1001}, kLarge);
  go();
  CHECK(!wait(engine, receive.request));
  CHECK(!wait(engine, send.request));
  CHECK(!engine.failure(peer).empty());
  CHECK(!wait(engine, own.recv(peer, {0, 1002}, 100).request));
  CHECK(!wait(engine, own.send(peer, {0, 1003}, kLarge).request));
}

// That an engine that goes leaves nothing pending.
inline void pending_at_the_end(std::unique_ptr<Engine> engine, int rank, int peer) {
  Rank own(*engine, rank, 2);
  Message& receive = own.recv(peer, {0, 1000}, 100);
  Message& send = own.send(peer, {0, 1001}, kLarge);
  engine->progress();
  CHECK(receive.request.pending() && send.request.pending());
  engine.reset();
  CHECK(receive.request.failed() && send.request.failed());
}

}  // namespace contract
