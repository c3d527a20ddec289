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
    streams.push_back(pairs_.at(message.peer).streams[direction_of(message)].get());
    RINGCOMM_CHECK(cudaStreamWaitEvent(streams.back(), begin, 0));
  }
  RINGCOMM_CHECK(ncclGroupStart());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const ncclComm_t comm = pairs_.at(m.peer).comms->get()[direction_of(m)];
    const int peer = m.peer > group_.rank ? 1 : 0;  // in the pair
    if (m.is_send) {
      RINGCOMM_CHECK(ncclSend(m.data, m.nbytes, ncclUint8, peer, comm, streams[i]));
    } else {
      RINGCOMM_CHECK(ncclRecv(m.data, m.nbytes, ncclUint8, peer, comm, streams[i]));
    }
  }
  RINGCOMM_CHECK(ncclGroupEnd());
  return streams;
}

// All pairs at once, so that ranks may name their peers in any order. The lower rank of a pair says
// where to meet before any rank waits to be told.
void Messages::connect(const std::vector<int>& peers, const shm::Deadline& deadline) {
  std::map<int, std::unique_ptr<Comms>> meeting;
  for (const bool lower : {true, false}) {
    for (const int peer : peers) {
      if ((group_.rank < peer) == lower && !meeting.contains(peer)) {
        meeting.emplace(peer, begin_to_meet(peer, deadline));
      }
    }
  }
  await(group_, deadline, "connecting to " + describe_ranks(peers), [&meeting] {
    bool all = true;
    for (auto& [peer, comms] : meeting) all = comms->progress() && all;
    return all;
  });
  for (auto& [peer, comms] : meeting) pairs_.emplace(peer, Pair{std::move(comms), {}});
}

std::unique_ptr<Comms> Messages::begin_to_meet(int peer, const shm::Deadline& deadline) {
  const int low = std::min(group_.rank, peer), high = std::max(group_.rank, peer);
  ncclUniqueId id;
  if (group_.rank == low) {
    RINGCOMM_CHECK(ncclGetUniqueId(&id));
    store_.set(key_of(low, high), std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string text = store_.get(key_of(low, high), deadline.timeout);
    std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof(id.internal)));
  }
  return std::make_unique<Comms>(id, group_.rank == low ? 0 : 1, 2, 2, kMessageCtas);
}

Messages::Direction Messages::direction_of(const Message& message) const {
  return message.is_send == (group_.rank < message.peer) ? kUp : kDown;
}

std::vector<ncclComm_t> Messages::comms() const {
  std::vector<ncclComm_t> all;
  for (const auto& [peer, pair] : pairs_) {
    all.insert(all.end(), pair.comms->get().begin(), pair.comms->get().end());
  }
  return all;
}

void Messages::abort() {
  for (auto& [peer, pair] : pairs_) pair.comms->abort();
}

// In the order of the pairs, which is the same for both of each.
void Messages::destroy() {
  for (auto& [peer, pair] : pairs_) pair.comms->destroy();
}

}  // namespace ringcomm::nccl
