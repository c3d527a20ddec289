#include "nccl/messages.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "nccl/errors.h"
#include "status.h"

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::milliseconds kPollEvery{1};
constexpr int kMessageCtas = 4;

std::string key_of(int low, int high) {
  return "nccl pair " + std::to_string(low) + " " + std::to_string(high);
}

}  // namespace

void await(shm::Group& group, const shm::Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress) {
  while (!progress()) {
    if (group.broken()) group.check(doing);
    if (shm::Clock::now() - deadline.start > deadline.timeout) {
      throw group.fail(ErrorKind::kTimeout, "rank " + std::to_string(group.rank) + " in " + doing +
                                                " Timed out after " +
                                                describe_seconds(deadline.waited()) +
                                                ": NCCL waits for a rank that has not come");
    }
    std::this_thread::sleep_for(kPollEvery);
  }
}

std::string describe(const Message& message) {
  return std::string(message.is_send ? "send" : "recv") +
         "(nbytes=" + std::to_string(message.nbytes) + ", peer=" + std::to_string(message.peer) +
         ")";
}

std::vector<cudaStream_t> Messages::run(const std::vector<Message>& messages, cudaEvent_t begin,
                                        const shm::Deadline& deadline) {
  std::vector<int> peers;
  for (const Message& message : messages) {
    if (!pairs_.contains(message.peer)) peers.push_back(message.peer);
  }
  connect(peers, deadline);

  std::vector<cudaStream_t> streams;
  for (const Message& message : messages) {
    streams.push_back(edge_of(message).stream.get());
    RINGCOMM_CHECK(cudaStreamWaitEvent(streams.back(), begin, 0));
  }
  RINGCOMM_CHECK(ncclGroupStart());
  for (const Message& m : messages) {
    const Edge& edge = edge_of(m);
    const int peer = m.peer > group_.rank ? 1 : 0;  // in the pair
    if (m.is_send) {
      RINGCOMM_CHECK(ncclSend(m.data, m.nbytes, ncclUint8, peer, edge.comm, edge.stream.get()));
    } else {
      RINGCOMM_CHECK(ncclRecv(m.data, m.nbytes, ncclUint8, peer, edge.comm, edge.stream.get()));
    }
  }
  RINGCOMM_CHECK(ncclGroupEnd());
  return streams;
}

// All pairs at once, so that ranks may name their peers in any order. The lower rank of a pair says
// where to meet before any rank waits to be told.
void Messages::connect(const std::vector<int>& peers, const shm::Deadline& deadline) {
  std::map<int, CommSetup> setups;
  for (const bool lower : {true, false}) {
    for (const int peer : peers) {
      if ((group_.rank < peer) == lower && !setups.contains(peer)) {
        setups.emplace(peer, set_up(peer, deadline));
      }
    }
  }
  await(group_, deadline, "connecting to " + describe_ranks(peers), [&setups] {
    bool all = true;
    for (auto& [peer, setup] : setups) all = setup.progress() && all;
    return all;
  });
  for (auto& [peer, setup] : setups) {
    const std::vector<ncclComm_t> comms = setup.take();
    pairs_.emplace(peer, Pair{{comms[0], Stream()}, {comms[1], Stream()}});
  }
}

CommSetup Messages::set_up(int peer, const shm::Deadline& deadline) {
  const int low = std::min(group_.rank, peer), high = std::max(group_.rank, peer);
  ncclUniqueId id;
  if (group_.rank == low) {
    RINGCOMM_CHECK(ncclGetUniqueId(&id));
    store_.set(key_of(low, high), std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string text = store_.get(key_of(low, high), deadline.timeout);
    std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof(id.internal)));
  }
  return CommSetup(id, group_.rank == low ? 0 : 1, 2, 2, kMessageCtas);
}

Messages::Edge& Messages::edge_of(const Message& message) {
  Pair& pair = pairs_.at(message.peer);
  const bool upwards = message.is_send == (group_.rank < message.peer);
  return upwards ? pair.up : pair.down;
}

std::vector<ncclComm_t> Messages::comms() const {
  std::vector<ncclComm_t> all;
  for (const auto& [peer, pair] : pairs_) {
    all.push_back(pair.up.comm);
    all.push_back(pair.down.comm);
  }
  return all;
}

void Messages::abort() {
  std::vector<ncclComm_t> all = comms();
  nccl::abort(all);
  pairs_.clear();
}

// In the order of the pairs, which is the same for both of each.
void Messages::destroy() {
  std::vector<ncclComm_t> all = comms();
  nccl::destroy(all);
  pairs_.clear();
}

}  // namespace ringcomm::nccl
