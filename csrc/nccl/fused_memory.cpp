#include "nccl/fused_memory.h"

#include <cstring>
#include <utility>

#include "nccl/errors.h"

namespace ringcomm::nccl {

// What a rank shows of its memory.
struct FusedMemory::Card {
  Process process;
  std::byte* address;
  std::int64_t device;  // as its process counts them
  cudaIpcMemHandle_t handle;

  static Card from(const Board::Greeting& bytes) {
    Card card;
    std::memcpy(static_cast<void*>(&card), bytes.data(), sizeof(card));
    return card;
  }
  Board::Greeting bytes() const {
    static_assert(sizeof(Card) <= kGreetingNbytes);
    Board::Greeting bytes{};
    std::memcpy(bytes.data(), this, sizeof(*this));
    return bytes;
  }
  bool is_in(const Process& other) const {
    return process.pid == other.pid && process.start_time == other.start_time &&
           process.pid_namespace == other.pid_namespace;
  }
};

FusedMemory::FusedMemory(Group& group, int device, const fused::Layout& layout, Reclaim reclaim,
                         const Process& process)
    : group_(group),
      board_(group.board()),
      device_(device),
      layout_(layout),
      reclaim_(std::move(reclaim)),
      process_(process),
      memory_(group.world_size) {}

FusedMemory::~FusedMemory() {
  at_the_end([this] {
    keep_for_good({own_, control_});
    keep_for_good(own_);
  });
}

void FusedMemory::allocate() {
  own_ = nccl::allocate(layout_.nbytes(), reclaim_);
  void* const own = own_.get();
  memory_[group_.rank] = static_cast<std::byte*>(own);
  void* control = nullptr;
  RINGCOMM_CHECK(cudaHostAlloc(&control, sizeof(fused::Control), cudaHostAllocPortable));
  control_ = new (control) fused::Control{};
  const Stream stream;
  RINGCOMM_CHECK(cudaMemsetAsync(own, 0, layout_.counters_nbytes(), stream.get()));
  RINGCOMM_CHECK(cudaStreamSynchronize(stream.get()));
  Card card{.process = process_, .address = memory_[group_.rank], .device = device_, .handle = {}};
  RINGCOMM_CHECK(cudaIpcGetMemHandle(&card.handle, own));
  board_.show(card.bytes());
}

void FusedMemory::open(int rank, const Card& card) {
  if (!card.is_in(process_)) {
    void* theirs = nullptr;
    RINGCOMM_CHECK(cudaIpcOpenMemHandle(&theirs, card.handle, cudaIpcMemLazyEnablePeerAccess));
    memory_[rank] = static_cast<std::byte*>(theirs);
    opened_.push_back(rank);
    return;
  }
  memory_[rank] = card.address;
  const int device = static_cast<int>(card.device);
  if (device == device_) return;
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(device, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // which would be found by whoever asks next
  } else {
    check(enabled, "cudaDeviceEnablePeerAccess(device, 0)");
  }
}

bool FusedMemory::progress() {
  const auto refuse = [this](const std::string& why) {
    why_not_ = why;
    board_.tell_reach(Board::Reach::kNotAll);
  };
  const Board::Reach own = board_.reach_of(group_.rank);
  if (own == Board::Reach::kUnknown) {
    try {
      if (memory_[group_.rank] == nullptr) allocate();
      for (int r = 0; r < group_.world_size; ++r) {
        if (memory_[r] != nullptr) continue;
        const auto card = board_.card_of(r);
        if (card) {
          open(r, Card::from(*card));
        } else if (board_.reach_of(r) != Board::Reach::kNotAll) {
          return false;
        }
      }
      board_.tell_reach(Board::Reach::kAll);
    } catch (const Error& error) {
      refuse(error.what());
    }
  }
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.reach_of(r) == Board::Reach::kUnknown) return false;
  }
  for (int r = 0; r < group_.world_size && why_not_.empty(); ++r) {
    if (board_.reach_of(r) != Board::Reach::kNotAll) continue;
    why_not_ = group_.members.name(r) + " cannot reach the memory of all other ranks' devices";
  }
  if (!why_not_.empty()) close_others();
  return true;
}

void FusedMemory::close_others() {
  for (const int rank : std::exchange(opened_, {})) {
    RINGCOMM_CHECK(cudaIpcCloseMemHandle(memory_[rank]));
  }
}

void FusedMemory::free() {
  memory_[group_.rank] = nullptr;
  own_.reset();
  if (control_ != nullptr) RINGCOMM_CHECK(cudaFreeHost(std::exchange(control_, nullptr)));
}

// Whoever has memory of another process open must close it before that is freed.
bool FusedMemory::let_go() {
  close_others();
  board_.tell_reach(Board::Reach::kLetGo);
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.reach_of(r) != Board::Reach::kLetGo) return false;
  }
  free();
  return true;
}

}  // namespace ringcomm::nccl
