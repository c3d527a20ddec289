#include "nccl/comms.h"

#include <dlfcn.h>

#include <utility>

#include "nccl/errors.h"

namespace ringcomm::nccl {
namespace {

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
    if (static_cast<int>(comms_.size()) == number_) break;
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
  abort();  // the first one, which has never had anything to do
}

void interrupt(const std::vector<ncclComm_t>& comms) {
  using Revoke = ncclResult_t (*)(ncclComm_t, int);
  // From NCCL 2.28.7 on. Before, a thread that waits for a lost peer stays where it is.
  static const auto revoke = reinterpret_cast<Revoke>(dlsym(RTLD_DEFAULT, "ncclCommRevoke"));
  if (revoke == nullptr) return;
  for (const ncclComm_t comm : comms) revoke(comm, 0);
}

void check_async(const std::vector<ncclComm_t>& comms) {
  for (const ncclComm_t comm : comms) {
    ncclResult_t state = ncclSuccess;
    RINGCOMM_CHECK(ncclCommGetAsyncError(comm, &state));
    check(state, "an asynchronous operation of NCCL");
  }
}

}  // namespace ringcomm::nccl
