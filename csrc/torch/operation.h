// An operation of the backend: what it does, what is reported of it, and how long it may take.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "plan/collective.h"
#include "torch/observer.h"

namespace ringcomm {

// ---- How long it may take -----------------------------------------------------------------------

// Time that is added to a group's timeout for a while: Backend::addEphemeralTimeout.
//
// It counts for every work that is created until the first of them is complete. That first work
// claims it, and lets go of it when it is complete.
class TimeoutExtension : public std::enable_shared_from_this<TimeoutExtension> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  void add(Milliseconds more) {
    active_ += more.count();
    unclaimed_ += more.count();
  }
  bool is_active() const { return active_.load(std::memory_order_relaxed) != 0; }
  Milliseconds now() const { return Milliseconds(active_.load(std::memory_order_relaxed)); }

  // What was added since the last claim ends with the object that is returned; null: nothing was.
  std::shared_ptr<const void> claim() {
    if (unclaimed_.load(std::memory_order_relaxed) == 0) return nullptr;
    return std::make_shared<const Claim>(shared_from_this());
  }

 private:
  struct Claim {
    explicit Claim(std::shared_ptr<TimeoutExtension> of)
        : extension(std::move(of)), claimed(extension->unclaimed_.exchange(0)) {}
    ~Claim() { extension->active_ -= claimed; }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    const std::shared_ptr<TimeoutExtension> extension;
    const Milliseconds::rep claimed;
  };

  std::atomic<Milliseconds::rep> active_ = 0;
  std::atomic<Milliseconds::rep> unclaimed_ = 0;
};

// ---- What an operation does ---------------------------------------------------------------------

// A collective of torch's.
struct OperationKind {
  c10d::OpType type;
  const char* name;  // that torch's analyzer uses for it
  // None: its size depends on the other ranks' tensors.
  std::optional<Collective> collective;
};
inline constexpr OperationKind kOperationKinds[] = {
    {c10d::OpType::BARRIER, "all_reduce_barrier", Collective::kBarrier},
    {c10d::OpType::ALLREDUCE, "all_reduce", Collective::kAllReduce},
    {c10d::OpType::_ALLREDUCE_SPARSE, "all_reduce", std::nullopt},
    {c10d::OpType::REDUCE, "reduce", Collective::kReduce},
    {c10d::OpType::REDUCE_SCATTER, "reduce_scatter", Collective::kReduceScatter},
    {c10d::OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", Collective::kReduceScatter},
    {c10d::OpType::ALLGATHER, "all_gather", Collective::kAllGather},
    {c10d::OpType::_ALLGATHER_BASE, "_all_gather_base", Collective::kAllGather},
    {c10d::OpType::BROADCAST, "broadcast", Collective::kBroadcast},
    {c10d::OpType::GATHER, "gather", Collective::kGather},
    {c10d::OpType::SCATTER, "scatter", Collective::kScatter},
    {c10d::OpType::ALLTOALL, "all_to_all", Collective::kAllToAll},
    {c10d::OpType::ALLTOALL_BASE, "all_to_all", Collective::kAllToAll},
};
// By torch's number of the type, as each call asks for its own.
inline constexpr auto kKindOf = [] {
  std::array<const OperationKind*, 256> kinds{};
  for (const OperationKind& kind : kOperationKinds) {
    kinds[static_cast<std::uint8_t>(kind.type)] = &kind;
  }
  return kinds;
}();
inline const OperationKind& kind_of(c10d::OpType type) {
  const OperationKind* const kind = kKindOf[static_cast<std::uint8_t>(type)];
  TORCH_INTERNAL_ASSERT(kind != nullptr, "ring: no collective is a ", c10d::opTypeToString(type));
  return *kind;
}

// As torch.distributed has it. The sparse all-reduce is the only one that is no Collective.
inline const char* public_name_of(c10d::OpType type) {
  const auto& collective = kind_of(type).collective;
  return collective ? to_string(*collective) : "all_reduce";
}

struct Operation {
  // Does all of it, with checked arguments, by the collectives of the host or of a device. Throws
  // on failure.
  using Body = std::function<void(Collectives&)>;

  c10d::OpType type;
  const char* title;  // for the profiler
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // What is really read and written: inputs and outputs, or flat copies of them.
  std::vector<at::Tensor> memory;
  std::chrono::milliseconds timeout;
  bool async = true;
  int num_calls = 1;           // of the collectives that the body calls
  bool may_be_tried = false;   // the body may be run again if it had to wait
  bool reads = true;           // the inputs' contents count: a broadcast's only on the root
  bool has_result = true;      // the outputs are one, such as a reduction's on its root alone
  std::uint64_t sequence = 0;  // from when it begins
  Report report = {};
  std::shared_ptr<TimeoutExtension> extension = nullptr;  // of its group

  // To be held until the operation is complete, by the work that is made of it.
  std::shared_ptr<const void> claim_extension() const {
    return extension ? extension->claim() : nullptr;
  }
};

}  // namespace ringcomm
