// The fused kernels of a group on one device: one launch for each call, and the memory through
// which the kernels of all ranks exchange data (gpu/fused/layout.h).
//
// Every rank allocates its own memory and publishes its handle. Ranks of one process use the
// address; other ranks open the memory with CUDA's handle for other processes. An opened handle is
// no proof of access: each rank proves that its writes arrive and that it reads what is there.
// Either all ranks reach all memory and use it, or no rank does.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/call.h"
#include "core/chunks.h"
#include "core/device_board.h"
#include "core/group.h"
#include "core/process.h"
#include "gpu/fused/job.h"
#include "gpu/fused/probe.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

// What the user's variables for NCCL allow GPUs to do with each other's memory. Fused kernels need
// that memory as much as NCCL's transport between GPUs of one host, and users forbid it for the
// same reasons.
struct P2pLimit {
  enum class Kind { kNone, kNvlinkOnly, kForbidden };
  Kind kind = Kind::kNone;
  std::string variable;  // "NCCL_P2P_LEVEL=NVL"; empty for kNone
};

// Reads NCCL_P2P_DISABLE and NCCL_P2P_LEVEL. Levels that allow some paths over PCI Express count as
// NVL, because the path between two GPUs is not looked up.
P2pLimit p2p_limit();

class MemoryProbe;  // fused.cpp

// The memory of a rank, and that of other ranks that it has open.
//
// Invariant: a kernel uses only memory whose owner keeps it. An owner frees its memory only when
// all ranks have said kReleased (core/device_board.h). Otherwise the memory stays as long as the
// process, and the communicator sees to it that a rank that leaves waits for the kernels of others.
class FusedMemory {
 public:
  // Which paths are used: all that carry bytes, or only NVLink, for which CUDA reports native
  // atomic operations between devices.
  enum class Paths { kAll, kNvlink };

  // `device` is the current one in all methods. `process` is this process.
  FusedMemory(Group& group, int device, const fused::Layout& layout, Paths paths,
              Allocator allocator, const Process& process = Process::self());
  FusedMemory(const FusedMemory&) = delete;
  FusedMemory& operator=(const FusedMemory&) = delete;
  // Memory that is not freed by then stays as long as the process: other ranks may still read it.
  ~FusedMemory();

  // True once it is known whether all ranks reach all memory. Call it until then. It does not wait
  // for other ranks. Throws Error (kLibrary).
  bool progress();
  // Afterwards: why not all ranks reach all memory. Empty: they do. If they do not, no rank has
  // memory of another one open any more.
  const std::string& why_not() const { return why_not_; }

  const fused::Layout& layout() const { return layout_; }
  std::byte* of(int rank) const { return memory_[rank]; }
  // What this rank's kernels and the host exchange.
  fused::Control& control() const { return *control_; }

  // Call it when this rank's kernels have ended and no graph holds one, until it returns true: then
  // all ranks have released the memory, and it is freed.
  bool let_go();
  // Frees memory that no other rank has open.
  void free();

 private:
  struct IpcHandle;

  bool decide();
  void allocate();
  bool open_all();
  void open(int rank, const IpcHandle& ipc_handle);
  void check_allowed() const;
  void check_path(int rank, const IpcHandle& ipc_handle) const;
  bool reaches_all();
  bool any_refuses() const;
  fused::Probe make_probe() const;
  void close_others();

  Group& group_;
  DeviceBoard& board_;
  const int device_;
  const fused::Layout layout_;
  const Paths paths_;
  const Allocator allocator_;
  const Process process_;
  std::shared_ptr<void> own_;
  std::shared_ptr<fused::Control> control_;
  std::unique_ptr<MemoryProbe> probe_;
  std::vector<std::byte*> memory_;  // by rank
  std::vector<int> opened_;         // ranks of other processes
  std::string why_not_;
};

// Carries out programs with these kernels.
class FusedExecutor {
 public:
  // All ranks reach all memory by now. Loads the kernels: if they were loaded later, that might
  // wait for a kernel that waits for a peer.
  FusedExecutor(int rank, std::unique_ptr<FusedMemory> memory, Allocator allocator);
  FusedExecutor(const FusedExecutor&) = delete;
  FusedExecutor& operator=(const FusedExecutor&) = delete;

  // Whether a kernel can carry out the program. It is the same on all ranks.
  bool takes(const Program& program) const;

  // Enqueues the call on `stream`, which is the same for all calls. The program must stay where it
  // is.
  void run(const Call& call, const Program& program, std::span<const Chunk> chunks,
           const Reduction& reduction, cudaStream_t stream);

  // The same for a small call, whose blocks are not cut into a plan's chunks: gpu/fused/eager.h
  // carries it out in one hop or two.
  bool is_eager(const Call& call, std::span<const Chunk> blocks) const {
    return fused::is_eager(call, blocks, memory_->layout()) ||
           fused::takes_two_hops(call, blocks, memory_->layout());
  }
  void run_eagerly(const Call& call, std::span<const Chunk> blocks, const Reduction& reduction,
                   cudaStream_t stream);

  // Any thread may call this. Kernels end without their results.
  void give_up();
  // Any thread may call this. The ranks that the kernels have long been waiting for: " Its device
  // waits for rank 2.", or nothing.
  std::string describe_waits(const Members& members) const;

  // See FusedMemory::let_go().
  bool let_go() { return memory_->let_go(); }

 private:
  struct Uploaded {
    std::shared_ptr<void> memory;
    fused::Script script;
  };

  void find_memory(fused::Job& job) const;
  const fused::Script& script_of(const Program& program);
  std::byte* scratch_of(std::size_t nbytes);

  const int rank_;
  const std::unique_ptr<FusedMemory> memory_;
  const Allocator allocator_;
  int arch_ = 0;  // of the kernels: gpu/fused/launch.h
  std::map<const Program*, Uploaded> scripts_;
  // The last is in use. Graphs may use those before it.
  std::vector<std::shared_ptr<void>> scratch_;
  std::size_t scratch_nbytes_ = 0;
};

}  // namespace ringcomm::nccl
