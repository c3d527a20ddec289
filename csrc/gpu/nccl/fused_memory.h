// The memory by which the fused kernels of a group's ranks meet (fused/layout.h): how each rank
// gets at that of all others.
//
// Every rank allocates its own and shows where it is. Ranks of one process take the address; others
// open the memory by CUDA's handle for other processes. What was opened is not trusted: each rank
// proves that its writes arrive and that it reads what is there. Either all ranks reach all memory
// and use it, or none does.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/device_board.h"
#include "core/group.h"
#include "core/members.h"
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

// From NCCL_P2P_DISABLE and NCCL_P2P_LEVEL. Levels that allow some paths over PCI Express count as
// NVL: which path two GPUs have there is not looked for.
P2pLimit p2p_limit();

// One rank's part in the proof that all ranks reach each other's memory: gpu/fused/probe.h.
class MemoryProbe {
 public:
  // Before any rank's find(). `probe` refers to memory that stays as long as this object, and if
  // hangs(), as long as the process.
  explicit MemoryProbe(const fused::Probe& probe) : probe_(probe) {}

  // Each is to be called until it returns true, and find() when all ranks have written. They do not
  // wait. Throw Error (kLibrary), also if a kernel takes longer than 2 s.
  bool write();
  bool find();

  // In place of them, where their result does not matter any more: no kernel is under way.
  bool has_ended();

  // After find(). What the rank does not reach, and how that shows; empty: it reaches all.
  std::string describe(const Members& members) const;

  // Whether a kernel has begun, and not been seen to end.
  bool hangs() const { return is_under_way_; }

 private:
  using Launch = cudaError_t (*)(const fused::Probe&, cudaStream_t);
  bool run(Launch launch);

  const fused::Probe probe_;
  const Stream stream_;
  Event ended_;
  bool is_under_way_ = false;  // a kernel, as far as is known
  Clock::time_point began_{};
};

class FusedMemory {
 public:
  // Over which paths: all that carry bytes, or NVLink alone, which is where CUDA reports atomic
  // operations between devices.
  enum class Paths { kAll, kNvlink };

  // `device` is the current one, in all methods. `process` is this one.
  FusedMemory(Group& group, int device, const fused::Layout& layout, Paths paths, Reclaim reclaim,
              const Process& process = Process::self());
  FusedMemory(const FusedMemory&) = delete;
  FusedMemory& operator=(const FusedMemory&) = delete;
  // What is not freed stays as long as the process: others may still read it.
  ~FusedMemory();

  // True once it is known whether all ranks reach all memory; to be called until then. Does not
  // wait for them. Throws Error (kLibrary).
  bool progress();
  // Afterwards. Why they do not; empty: they do. If they do not, nobody has others' memory open any
  // more.
  const std::string& why_not() const { return why_not_; }

  const fused::Layout& layout() const { return layout_; }
  std::byte* of(int rank) const { return memory_[rank]; }
  // Between this rank's kernels and the host.
  fused::Control& control() const { return *control_; }

  // This rank's kernels have ended, and no graph holds one. To be called until it returns true: all
  // ranks have let go then, and the memory is freed.
  bool let_go();
  // Frees what nobody else has open.
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
  const Reclaim reclaim_;
  const Process process_;
  std::shared_ptr<void> own_;
  std::shared_ptr<fused::Control> control_;
  std::unique_ptr<MemoryProbe> probe_;
  std::vector<std::byte*> memory_;  // by rank
  std::vector<int> opened_;         // ranks of other processes
  std::string why_not_;
};

}  // namespace ringcomm::nccl
