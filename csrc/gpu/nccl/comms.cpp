#include "gpu/nccl/comms.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/poll.h"
#include "core/thread.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::seconds kPatience{5};

ncclConfig_t config_of(bool blocking, int max_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  config.maxCTAs = max_ctas;
  config.splitShare = 0;  // every channel has connections and an abort flag of its own
  return config;
}

}  // namespace

Comms::Comms(const ncclUniqueId& id, int rank, int world_size, int number, int max_ctas)
    : rank_(rank), number_(number), max_ctas_(max_ctas) {
  ncclConfig_t config = config_of(/*blocking=*/false, max_ctas);
  RINGCOMM_CHECK(ncclCommInitRankConfig(&parent_, world_size, id, rank, &config));
}

bool Comms::progress() {
  while (static_cast<int>(comms_.size()) < number_) {
    ncclResult_t state = ncclSuccess;
    RINGCOMM_CHECK(ncclCommGetAsyncError(parent_, &state));
    if (state == ncclInProgress) return false;
    check(state, child_ == nullptr && comms_.empty() ? "ncclCommInitRankConfig" : "ncclCommSplit");
    if (child_ != nullptr) comms_.push_back(std::exchange(child_, nullptr));
    if (static_cast<int>(comms_.size()) == number_) {
      ncclCommAbort(std::exchange(parent_, nullptr));
      break;
    }
    ncclConfig_t config = config_of(/*blocking=*/true, max_ctas_);
    RINGCOMM_CHECK(ncclCommSplit(parent_, /*color=*/0, /*key=*/rank_, &child_, &config));
  }
  return true;
}

void Comms::abort() {
  for (const ncclComm_t comm : std::exchange(comms_, {})) ncclCommAbort(comm);
  if (parent_ != nullptr) ncclCommAbort(std::exchange(parent_, nullptr));
}

void Comms::destroy() {
  for (const ncclComm_t comm : comms_) RINGCOMM_CHECK(ncclCommFinalize(comm));
  for (const ncclComm_t comm : std::exchange(comms_, {})) RINGCOMM_CHECK(ncclCommDestroy(comm));
}

void Comms::leave() {
  for (auto& memory : std::exchange(memory_, {})) keep_for_good(std::move(memory));
  comms_.clear();
  parent_ = nullptr;
}

Interruption::Interruption(std::vector<ncclComm_t> comms, int device) {
  using Revoke = ncclResult_t (*)(ncclComm_t, int);
  static const auto revoke = reinterpret_cast<Revoke>(dlsym(RTLD_DEFAULT, "ncclCommRevoke"));
  if (revoke == nullptr) return;
  try {
    start_thread([over = over_, comms = std::move(comms), device] {
      cudaSetDevice(device);  // NCCL sets it again, and so would make a context on the first one
      for (const ncclComm_t comm : comms) revoke(comm, 0);
      over->store(true, std::memory_order_release);
    }).detach();
  } catch (const NoThread&) {
    return;
  }
}

bool Interruption::succeeds(const std::function<bool()>& is_back) {
  return poll_for(kPatience, Poll(kPollEvery),
                  [&] { return over_->load(std::memory_order_acquire) && is_back(); });
}

void check_async(const std::vector<ncclComm_t>& comms) {
  for (const ncclComm_t comm : comms) {
    ncclResult_t state = ncclSuccess;
    RINGCOMM_CHECK(ncclCommGetAsyncError(comm, &state));
    check(state, "an asynchronous operation of NCCL");
  }
}

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

static_assert(sizeof(ncclUniqueId) == kUniqueIdNbytes);

DeviceBoard::UniqueId CommunicatorSetup::new_id() {
  ncclUniqueId id;
  RINGCOMM_CHECK(ncclGetUniqueId(&id));
  DeviceBoard::UniqueId unique_id;
  std::memcpy(unique_id.data(), &id, sizeof(id));
  return unique_id;
}

CommunicatorSetup::~CommunicatorSetup() {
  if (edges_ && !edges_->stop() && comms_) comms_->leave();
}

bool CommunicatorSetup::progress() {
  if (!comms_) {
    const std::optional<DeviceBoard::UniqueId> unique_id = find_id_();
    if (!unique_id) return false;
    ncclUniqueId id;
    std::memcpy(&id, unique_id->data(), sizeof(id));
    comms_ =
        std::make_unique<Comms>(id, party_.rank, party_.world_size, num_comms_, party_.max_ctas);
  }
  if (!comms_->progress()) return false;
  if (party_.peers.empty()) return true;
  if (!edges_) {
    edges_.emplace(comms_->get(), party_.peers, party_.device, memory_);
  }
  return edges_->connected();
}

}  // namespace ringcomm::nccl
