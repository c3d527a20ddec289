#include "gpu/nccl/fused.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string_view>
#include <utility>

#include "core/deadline.h"
#include "core/process.h"
#include "gpu/fused/launch.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {
namespace {

constexpr long kLeastThatAllowsAll = 4;  // for levels that are numbers

P2pLimit::Kind kind_of_level(std::string_view level) {
  constexpr std::string_view kPartly[] = {"NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB"};
  if (level == "LOC") return P2pLimit::Kind::kForbidden;
  if (std::ranges::find(kPartly, level) != std::end(kPartly)) return P2pLimit::Kind::kNvlinkOnly;
  if (level[0] < '0' || level[0] > '9') return P2pLimit::Kind::kNone;
  const long number = std::strtol(level.data(), nullptr, 0);
  if (number == 0) return P2pLimit::Kind::kForbidden;
  return number < kLeastThatAllowsAll ? P2pLimit::Kind::kNvlinkOnly : P2pLimit::Kind::kNone;
}

constexpr std::chrono::seconds kProbePatience{2};

// A device's address on the PCI bus, which is the same in all processes of a host: "0000:3b:00.0".
using DeviceId = std::array<char, 16>;

DeviceId id_of(int device) {
  DeviceId id{};
  RINGCOMM_CHECK(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device));
  return id;
}

// It is also false if this process does not see the other device.
bool has_native_atomics(int device, const DeviceId& other) {
  int theirs = 0, native = 0;
  if (cudaDeviceGetByPCIBusId(&theirs, other.data()) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  RINGCOMM_CHECK(
      cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, device, theirs));
  return native != 0;
}

std::shared_ptr<fused::Control> make_control() {
  void* control = nullptr;
  RINGCOMM_CHECK(cudaHostAlloc(&control, sizeof(fused::Control), cudaHostAllocPortable));
  return {new (control) fused::Control{}, [](fused::Control* memory) { cudaFreeHost(memory); }};
}

}  // namespace

P2pLimit p2p_limit() {
  const char* disable = value_of_variable("NCCL_P2P_DISABLE");
  if (disable != nullptr && std::strtol(disable, nullptr, 0) == 1) {
    return {P2pLimit::Kind::kForbidden, std::string("NCCL_P2P_DISABLE=") + disable};
  }
  const char* level = value_of_variable("NCCL_P2P_LEVEL");
  const P2pLimit::Kind kind = level == nullptr ? P2pLimit::Kind::kNone : kind_of_level(level);
  if (kind == P2pLimit::Kind::kNone) return {};
  return {kind, std::string("NCCL_P2P_LEVEL=") + level};
}

// One rank's part in the proof that all ranks reach each other's memory: gpu/fused/probe.h.
class MemoryProbe {
 public:
  // Made before any rank's find(). `probe` refers to memory that stays as long as this object, or
  // if hangs() as long as the process.
  explicit MemoryProbe(const fused::Probe& probe) : probe_(probe) {}

  // Call each until it returns true, and find() once all ranks have written. They do not wait. They
  // throw Error (kLibrary), also if a kernel takes longer than 2 s.
  bool write() { return run(fused::launch_writes); }
  bool find() { return run(fused::launch_finds); }

  // Called instead of write() and find() when their result does not matter any more. True: no
  // kernel is under way.
  bool has_ended() {
    if (is_under_way_ && ended_.happened()) is_under_way_ = false;
    if (is_under_way_ && Clock::now() - began_ > kProbePatience) {
      throw Error(ErrorKind::kLibrary,
                  "a kernel that writes and reads all ranks' memory has not ended after " +
                      std::to_string(kProbePatience.count()) + " s");
    }
    return !is_under_way_;
  }

  // After find(): what the rank does not reach, and what shows it. Empty: it reaches all memory.
  std::string describe(const Members& members) const {
    const std::string own = members.name(probe_.rank);
    for (int peer = 0; peer < probe_.world_size; ++peer) {
      const std::string its = members.name(peer);
      if (!(probe_.findings[peer] & fused::kHasArrived)) {
        return "what " + its + " wrote into the memory of " + own + " has not arrived there";
      }
      if (!(probe_.findings[peer] & fused::kIsRead)) {
        return own + " reads other bytes in the memory of " + its + " than are there";
      }
    }
    return "";
  }

  // Whether a kernel has begun and is not known to have ended.
  bool hangs() const { return is_under_way_; }

 private:
  using Launch = cudaError_t (*)(const fused::Probe&, cudaStream_t);
  bool run(Launch launch) {
    if (!is_under_way_) {
      check(launch(probe_, stream_.get()), "launching a kernel that proves what memory is reached");
      is_under_way_ = true;
      began_ = Clock::now();
      RINGCOMM_CHECK(cudaEventRecord(ended_.get(), stream_.get()));
    }
    return has_ended();
  }

  const fused::Probe probe_;
  const Stream stream_;
  Event ended_;
  bool is_under_way_ = false;  // a kernel, as far as the host knows
  Clock::time_point began_{};
};

// What a rank publishes about its memory.
struct FusedMemory::IpcHandle {
  Process process;
  std::byte* address;
  std::int64_t device;  // as its process numbers them
  cudaIpcMemHandle_t handle;
  std::uint64_t number;  // drawn for the probe
  DeviceId id;

  static IpcHandle from(const DeviceBoard::UniqueId& bytes) {
    IpcHandle ipc_handle;
    std::memcpy(static_cast<void*>(&ipc_handle), bytes.data(), sizeof(ipc_handle));
    return ipc_handle;
  }
  DeviceBoard::UniqueId bytes() const {
    static_assert(sizeof(IpcHandle) <= kUniqueIdNbytes);
    DeviceBoard::UniqueId bytes{};
    std::memcpy(bytes.data(), this, sizeof(*this));
    return bytes;
  }
  bool is_in(const Process& other) const {
    return process.pid == other.pid && process.start_time == other.start_time &&
           process.pid_namespace == other.pid_namespace;
  }
};

FusedMemory::FusedMemory(Group& group, int device, const fused::Layout& layout, Paths paths,
                         Allocator allocator, const Process& process)
    : group_(group),
      board_(group.board()),
      device_(device),
      layout_(layout),
      paths_(paths),
      allocator_(std::move(allocator)),
      process_(process),
      memory_(group.world_size) {}

FusedMemory::~FusedMemory() {
  at_the_end([this] {
    keep_for_good(control_);
    keep_for_good(own_);
  });
}

void FusedMemory::allocate() {
  own_ = nccl::allocate(layout_.nbytes(), allocator_);
  memory_[group_.rank] = static_cast<std::byte*>(own_.get());
  control_ = make_control();
  const Stream stream;
  RINGCOMM_CHECK(cudaMemsetAsync(own_.get(), 0, layout_.counters_nbytes(), stream.get()));
  RINGCOMM_CHECK(cudaStreamSynchronize(stream.get()));
  IpcHandle ipc_handle{
      .process = process_,
      .address = memory_[group_.rank],
      .device = device_,
      .handle = {},
      .number = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32,
      .id = id_of(device_)};
  RINGCOMM_CHECK(cudaIpcGetMemHandle(&ipc_handle.handle, own_.get()));
  board_.publish_ipc_handle(ipc_handle.bytes());
}

// False: not all ranks have published their handles.
bool FusedMemory::open_all() {
  for (int r = 0; r < group_.world_size; ++r) {
    if (memory_[r] != nullptr) continue;
    const auto ipc_handle = board_.ipc_handle_of(r);
    if (!ipc_handle) return false;
    open(r, IpcHandle::from(*ipc_handle));
  }
  return true;
}

void FusedMemory::open(int rank, const IpcHandle& ipc_handle) {
  check_path(rank, ipc_handle);
  if (!ipc_handle.is_in(process_)) {
    void* theirs = nullptr;
    RINGCOMM_CHECK(
        cudaIpcOpenMemHandle(&theirs, ipc_handle.handle, cudaIpcMemLazyEnablePeerAccess));
    memory_[rank] = static_cast<std::byte*>(theirs);
    opened_.push_back(rank);
    return;
  }
  memory_[rank] = ipc_handle.address;
  const int device = static_cast<int>(ipc_handle.device);
  if (device == device_) return;
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(device, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // clears the error, which a later query would find
  } else {
    check(enabled, "cudaDeviceEnablePeerAccess(device, 0)");
  }
}

// Throws Error (kLibrary) if the user forbids such memory.
void FusedMemory::check_allowed() const {
  const P2pLimit limit = p2p_limit();
  if (limit.kind != P2pLimit::Kind::kForbidden) return;
  throw Error(ErrorKind::kLibrary,
              limit.variable + " forbids that devices reach each other's memory");
}

// Throws Error (kLibrary) if the path to that rank's device must not be used.
void FusedMemory::check_path(int rank, const IpcHandle& ipc_handle) const {
  const P2pLimit limit = p2p_limit();
  if (paths_ == Paths::kAll && limit.kind == P2pLimit::Kind::kNone) return;
  const DeviceId own = id_of(device_);
  if (ipc_handle.id == own || has_native_atomics(device_, ipc_handle.id)) return;
  throw Error(ErrorKind::kLibrary,
              "CUDA reports no native atomics, and so no NVLink, between the devices " +
                  std::string(own.data()) + " of " + group_.members.name(group_.rank) + " and " +
                  ipc_handle.id.data() + " of " + group_.members.name(rank) +
                  (limit.variable.empty() ? "" : ", which " + limit.variable + " asks for"));
}

fused::Probe FusedMemory::make_probe() const {
  fused::Probe probe{.rank = group_.rank,
                     .world_size = group_.world_size,
                     .lines = {},
                     .numbers = {},
                     .findings = control_->findings};
  for (int r = 0; r < group_.world_size; ++r) {
    probe.lines[r] = memory_[r] + layout_.probe_at();
    probe.numbers[r] = IpcHandle::from(*board_.ipc_handle_of(r)).number;
  }
  return probe;
}

bool FusedMemory::any_refuses() const {
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.access_of(r) == DeviceBoard::Access::kNotAll) return true;
  }
  return false;
}

// True once this rank has proved that it reaches all memory. Throws Error (kLibrary) if it does
// not.
bool FusedMemory::reaches_all() {
  if (own_ == nullptr) allocate();
  if (!open_all()) return false;
  if (!probe_) probe_ = std::make_unique<MemoryProbe>(make_probe());
  if (board_.access_of(group_.rank) == DeviceBoard::Access::kUnknown) {
    if (!probe_->write()) return false;
    board_.set_access(DeviceBoard::Access::kWritten);
  }
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.access_of(r) == DeviceBoard::Access::kUnknown) return false;
  }
  if (!probe_->find()) return false;
  const std::string missing = probe_->describe(group_.members);
  if (!missing.empty()) throw Error(ErrorKind::kLibrary, missing);
  return true;
}

// Whether this rank has published what it has found. If another rank refuses, this rank's own
// finding does not matter.
bool FusedMemory::decide() {
  if (board_.has_found(group_.rank)) return true;
  const auto is_idle = [this] { return !probe_ || probe_->has_ended(); };
  if (why_not_.empty()) {
    try {
      check_allowed();
      if (!(any_refuses() ? is_idle() : reaches_all())) return false;
    } catch (const Error& error) {
      why_not_ = error.what();
    }
  }
  // A kernel that takes long may still write to memory that other ranks would free.
  bool may_publish = false;
  if (error_of([&] { may_publish = is_idle(); }) || !may_publish) return false;
  board_.set_access(why_not_.empty() ? DeviceBoard::Access::kAll : DeviceBoard::Access::kNotAll);
  return true;
}

bool FusedMemory::progress() {
  if (!decide()) return false;
  for (int r = 0; r < group_.world_size; ++r) {
    if (!board_.has_found(r)) return false;
  }
  for (int r = 0; r < group_.world_size && why_not_.empty(); ++r) {
    if (board_.access_of(r) != DeviceBoard::Access::kNotAll) continue;
    why_not_ = group_.members.name(r) + " cannot reach the memory of all other ranks' devices";
  }
  if (!why_not_.empty()) close_others();
  return true;
}

// If a kernel of the probe hangs, it may still use the open memory.
void FusedMemory::close_others() {
  if (probe_ && probe_->hangs()) return;
  for (const int rank : std::exchange(opened_, {})) {
    RINGCOMM_CHECK(cudaIpcCloseMemHandle(memory_[rank]));
  }
}

void FusedMemory::free() {
  if (probe_ && probe_->hangs()) return;
  memory_[group_.rank] = nullptr;
  own_.reset();
  control_.reset();
}

// A process must close memory of another process before that process frees it.
bool FusedMemory::let_go() {
  close_others();
  board_.set_access(DeviceBoard::Access::kReleased);
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.access_of(r) != DeviceBoard::Access::kReleased) return false;
  }
  free();
  return true;
}

FusedExecutor::FusedExecutor(int rank, std::unique_ptr<FusedMemory> memory, Allocator allocator)
    : rank_(rank), memory_(std::move(memory)), allocator_(std::move(allocator)) {
  check(fused::load_kernels(&arch_), "loading the fused kernels");
}

bool FusedExecutor::takes(const Program& program) const {
  return fused::why_not(program, memory_->layout()).empty();
}

void FusedExecutor::run(const Call& call, const Program& program, std::span<const Chunk> chunks,
                        const Reduction& reduction, cudaStream_t stream) {
  fused::Job job = fused::make_job(call, program, chunks, reduction, memory_->layout(), rank_);
  job.script = script_of(program);
  job.scratch = scratch_of(job.num_lanes * job.scratch_nbytes);
  find_memory(job);
  check(fused::launch(job, reduction, arch_, stream), "launching the fused kernel");
}

void FusedExecutor::run_eagerly(const Call& call, std::span<const Chunk> blocks,
                                const Reduction& reduction, cudaStream_t stream) {
  if (call.count == 0) return;
  fused::Job job = fused::make_eager_job(call, blocks, reduction, memory_->layout(), rank_);
  find_memory(job);
  check(fused::launch_eager(job, reduction, stream), "launching the eager kernel");
}

void FusedExecutor::find_memory(fused::Job& job) const {
  for (int r = 0; r < job.layout.world_size; ++r) job.memory[r] = memory_->of(r);
  job.control = &memory_->control();
}

// The script is copied on a stream of its own: if a capture recorded the copy, the script would be
// there only after a replay.
const fused::Script& FusedExecutor::script_of(const Program& program) {
  const auto [found, is_new] = scripts_.try_emplace(&program);
  if (!is_new) return found->second.script;
  try {
    const fused::ScriptText text(program, rank_);
    auto memory = allocate(std::max<std::size_t>(text.nbytes(), 1), allocator_);
    std::vector<std::byte> bytes(text.nbytes());
    const fused::Script script =
        text.write(bytes.data(), static_cast<const std::byte*>(memory.get()));
    const RelaxedCapture relaxed;
    const Stream stream;
    RINGCOMM_CHECK(cudaMemcpyAsync(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                                   stream.get()));
    RINGCOMM_CHECK(cudaStreamSynchronize(stream.get()));
    found->second = {std::move(memory), script};
  } catch (...) {
    scripts_.erase(found);
    throw;
  }
  return found->second.script;
}

std::byte* FusedExecutor::scratch_of(std::size_t nbytes) {
  if (nbytes > scratch_nbytes_) {
    scratch_.push_back(allocate(nbytes, allocator_));
    scratch_nbytes_ = nbytes;
  }
  return scratch_.empty() ? nullptr : static_cast<std::byte*>(scratch_.back().get());
}

void FusedExecutor::give_up() {
  std::atomic_ref(memory_->control().aborted).store(1, std::memory_order_relaxed);
}

std::string FusedExecutor::describe_waits(const Members& members) const {
  std::vector<int> awaited;
  for (std::uint32_t& word : memory_->control().waits_for) {
    const auto peer = static_cast<int>(std::atomic_ref(word).load(std::memory_order_relaxed)) - 1;
    const bool is_rank = peer >= 0 && peer < memory_->layout().world_size;
    if (is_rank && std::ranges::find(awaited, peer) == awaited.end()) awaited.push_back(peer);
  }
  std::ranges::sort(awaited);
  return awaited.empty() ? "" : " Its device waits for " + members.names(awaited) + ".";
}

}  // namespace ringcomm::nccl
