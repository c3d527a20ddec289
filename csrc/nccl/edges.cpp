#include "nccl/edges.h"

#include <algorithm>
#include <utility>

#include "core/thread.h"
#include "nccl/comms.h"
#include "nccl/errors.h"

namespace ringcomm::nccl {

Edges::Edges(std::vector<ncclComm_t> comms, std::vector<int> peers, int device,
             std::shared_ptr<void> memory)
    : device_(device),
      state_(new State{std::move(comms), std::move(peers), std::move(memory), {}, {}}) {
  state_->streams.resize(state_->comms.size());
  state_->used.resize(state_->comms.size());
  thread_ = start_thread([state = state_, device] {
    try {
      RINGCOMM_CHECK(cudaSetDevice(device));
      RelaxedCapture relaxed;
      use_all(*state);
    } catch (...) {
      state->error = std::current_exception();
    }
    state->enqueued.store(true, std::memory_order_release);
  });
}

void Edges::use_all(State& state) {
  auto* byte = static_cast<std::byte*>(state.memory.get());
  for (std::size_t i = 0; i < state.comms.size(); ++i) {
    const ncclComm_t comm = state.comms[i];
    const cudaStream_t stream = state.streams[i].get();
    std::byte* const sent = byte++;
    RINGCOMM_CHECK(ncclGroupStart());
    for (const int peer : state.peers) {
      RINGCOMM_CHECK(ncclSend(sent, 1, ncclUint8, peer, comm, stream));
      RINGCOMM_CHECK(ncclRecv(byte++, 1, ncclUint8, peer, comm, stream));
    }
    RINGCOMM_CHECK(ncclGroupEnd());
    RINGCOMM_CHECK(cudaEventRecord(state.used[i].get(), stream));
  }
}

bool Edges::connected() const {
  if (!state_->enqueued.load(std::memory_order_acquire)) return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return std::all_of(state_->used.begin(), state_->used.end(),
                     [](const Event& used) { return used.happened(); });
}

bool Edges::stop() {
  if (!thread_.joinable()) return true;
  const auto is_back = [this] { return state_->enqueued.load(std::memory_order_acquire); };
  if (!is_back() && !Interruption(state_->comms, device_).succeeds(is_back)) {
    thread_.detach();
    return false;
  }
  thread_.join();
  return true;
}

}  // namespace ringcomm::nccl
