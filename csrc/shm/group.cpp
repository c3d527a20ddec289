#include "shm/group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace ringcomm::shm {
namespace {

constexpr int kSpins = 20;  // about 1 us; yielding costs little more, and lets a peer run

int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

Group::Group(Store& store, int rank, int world_size, std::chrono::milliseconds timeout)
    : rank(rank),
      world_size(world_size),
      spins(world_size <= cores() ? kSpins : 0),
      segment_(store, rank, world_size, timeout) {}

void Group::check(const std::string& doing) {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, doing + ": " + close_reason_);
  }
  GroupHeader& header = segment_.header();
  if (header.failed.load(std::memory_order_acquire) == 0) return;
  const Clock::time_point start = Clock::now();
  while (header.failed.load(std::memory_order_acquire) != 2) {
    if (Clock::now() - start > std::chrono::seconds(1)) {
      throw Error(ErrorKind::kPeerDied,
                  doing + ": a rank ended while it was recording why the group failed");
    }
    sched_yield();
  }
  throw Error(header.kind, doing + " failed on rank " + std::to_string(rank) +
                               ", because the group failed on rank " +
                               std::to_string(header.reporter) + ": " + header.text);
}

Error Group::fail(ErrorKind kind, const std::string& text) {
  GroupHeader& header = segment_.header();
  std::uint32_t nobody = 0;
  if (header.failed.compare_exchange_strong(nobody, 1, std::memory_order_acq_rel)) {
    header.kind = kind;
    header.reporter = rank;
    const std::size_t length = std::min(text.size(), sizeof(header.text) - 1);
    std::memcpy(header.text, text.data(), length);
    header.text[length] = '\0';
    header.failed.store(2, std::memory_order_release);
  }
  return Error(kind, text);
}

void Group::close(const std::string& reason) {
  std::call_once(close_once_, [&] {
    close_reason_ = reason;
    closed_.store(true, std::memory_order_release);
    segment_.state(rank).closed.store(1, std::memory_order_release);
  });
}

std::string Group::describe_peer(int peer) {
  std::string text;
  std::vector<int> seen;
  for (int at = peer; at >= 0 && std::find(seen.begin(), seen.end(), at) == seen.end();) {
    RankState& state = segment_.state(at);
    std::string how;
    text += std::string(text.empty() ? "" : ", which waits for ") + "rank " + std::to_string(at);
    if (gone(at, &how)) return text + " (" + how + ")";
    text += " (its last complete collective is #" +
            std::to_string(state.completed.load(std::memory_order_relaxed)) + ")";
    seen.push_back(at);
    at = state.waits_for.load(std::memory_order_relaxed);
  }
  return text;
}

bool Group::gone(int peer, std::string* how) {
  RankState& state = segment_.state(peer);
  if (state.closed.load(std::memory_order_acquire) != 0) {
    *how = "it has closed the group";
    return true;
  }
  if (!state.process.runs()) {
    *how = "its process " + std::to_string(state.process.pid) + " has ended";
    return true;
  }
  return false;
}

}  // namespace ringcomm::shm
