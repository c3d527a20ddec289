// Bytes between this rank and ranks on other hosts, by an engine that exists: hosts/ucx_engine.cpp,
// torch/gloo_engine.cpp.
//
// Sends and receives are posted, and meet by the two ranks and the tag, whichever comes first. So a
// receive that is posted ahead gets its bytes right in place, and what has no receive yet waits: on
// its sender if it is large, else here, or with some engines there, too. Deadlock hazard: post
// receives before waiting for sends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace ringcomm::links {

// What distinguishes messages that go from the same rank to the same rank. No tag is used twice. On
// one stream, a receive may be found complete no sooner than those posted before it.
struct Tag {
  std::uint8_t stream;   // below kStreams
  std::uint64_t number;  // below 2^40
};
inline constexpr int kStreams = 16;
// Bytes of a message that goes out without an answer of its receiver. One that is longer may need
// an answer, and that may wait behind all that the receiver sends itself.
inline constexpr std::size_t kOneShot = 256 << 10;
// On the streams from here on, the receiver knows the length: its room is as large.
inline constexpr std::uint8_t kFirstExactStream = 8;

// Something posted. It stays where it is, and so do its bytes, as long as it is pending.
struct Request {
  enum class State : std::uint8_t { kDone, kPending, kFailed };

  std::atomic<State> state{State::kDone};
  std::size_t nbytes = 0;  // of a receive that is done: what came, at most what there was room for
  void* handle = nullptr;  // the engine's

  bool done() const { return state.load(std::memory_order_acquire) == State::kDone; }
  bool pending() const { return state.load(std::memory_order_acquire) == State::kPending; }
  bool failed() const { return state.load(std::memory_order_acquire) == State::kFailed; }
};

// Any thread may call any method. None blocks but sleep() and the destructor, which cancels what is
// pending, and returns even if peers are dead.
class Engine {
 public:
  virtual ~Engine() = default;

  // "ucx 1.22", "gloo"
  virtual std::string describe() const = 0;

  // A peer is a rank of the group on another host. The request reports what cannot be done, such as
  // a message that is longer than the room for it. A send is done when its bytes may change, which
  // need not mean that they have arrived.
  virtual void send(int peer, Tag tag, std::span<const std::byte> bytes, Request& request) = 0;
  virtual void recv(int peer, Tag tag, std::span<std::byte> room, Request& request) = 0;
  // The request is not pending when this returns: done, if it was too late, or failed. A send, or a
  // receive whose bytes are under way, may take the connection to the peer with it (failure()).
  virtual void cancel(Request& request) = 0;

  // Moves what can be moved until something posted has ended, which its owner can go on with at
  // once. False: nothing is left to move. Without it nothing needs to move.
  virtual bool advance() = 0;
  void progress() {
    while (advance()) {
    }
  }
  // Whether all that was sent gets on its way without further progress(), and without the engine:
  // what is not flushed when that goes may be lost.
  virtual bool flushed() = 0;
  // Until there may be something to progress, or for that long.
  virtual void sleep(std::chrono::microseconds longest) = 0;

  // What is known to have gone wrong between this rank and the peer, in the engine's words; empty:
  // nothing. Whatever is posted for such a peer fails.
  virtual std::string failure(int peer) = 0;
};

// `engine` is what the hosts have agreed on. `meeting` is a name that all ranks of the group know,
// and no other group has ever had: under it they exchange addresses in a store (hosts/address.h).
// Each leaves its own at once, and looks for a peer's when it first needs it. Throws Error
// (kLibrary) if there is no engine.
using MakeEngine = std::function<std::unique_ptr<Engine>(
    const std::string& engine, const std::string& meeting, int rank, int world_size)>;

}  // namespace ringcomm::links
