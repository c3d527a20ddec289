#include "nccl/comms.h"

#include <dlfcn.h>

#include <chrono>
#include <thread>
#include <utility>

#include "core/thread.h"
#include "nccl/await.h"
#include "nccl/errors.h"
#include "nccl/memory.h"

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
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!over_->load(std::memory_order_acquire) || !is_back()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPollEvery);
  }
  return true;
}

void check_async(const std::vector<ncclComm_t>& comms) {
  for (const ncclComm_t comm : comms) {
    ncclResult_t state = ncclSuccess;
    RINGCOMM_CHECK(ncclCommGetAsyncError(comm, &state));
    check(state, "an asynchronous operation of NCCL");
  }
}

}  // namespace ringcomm::nccl
