// What torch asks of a backend beside communication: memory, times, and what is under way.
#include <c10/core/CPUAllocator.h>

#include "core/deadline.h"
#include "core/poll.h"
#include "shm/group.h"
#include "torch/announced.h"
#include "torch/call_guard.h"
#include "torch/errors.h"
#include "torch/python.h"
#include "torch/shared_memory.h"

namespace ringcomm {
namespace {

constexpr std::chrono::microseconds kLookAtWorks{100};

}  // namespace

void RingBackend::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  TORCH_CHECK_VALUE(timeout >= std::chrono::milliseconds(0),
                    "ring: addEphemeralTimeout adds at least 0 ms to a group's timeout, got ",
                    timeout.count());
  hooks_->extension->add(bounded(timeout));
}

void RingBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(!hasHooks(), "ring: this group has an onCompletion hook already; it can have one");
  hooks_->work_info.add(0, hook);
  onCompletionHook_ = std::move(hook);
  hooks_->times_calls = true;
}

void RingBackend::waitForPendingWorks() {
  check_usable();
  const CallGuard inside;
  without_gil([&] {
    for (Poll poll(kLookAtWorks); hooks_->under_way.use_count() > 1;) {
      if (queue_->help()) continue;
      check_interrupt();
      poll.sleep();
    }
  });
}

at::Tensor RingBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(),
                    "ring: allocate_tensor makes tensors on the CPU, got ", options.device());
  const SharedMemoryBlock block;
  return at::empty({size}, options);
}

std::shared_ptr<c10::Allocator> RingBackend::getMemAllocator() {
  struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(std::size_t nbytes) override {
      const SharedMemoryBlock block;
      return c10::GetCPUAllocator()->allocate(nbytes);
    }
    void copy_data(void* to, const void* from, std::size_t nbytes) const override {
      default_copy_data(to, from, nbytes);
    }
  };
  return std::make_shared<Allocator>();
}

std::unordered_map<std::string, std::uint64_t> RingBackend::getMemoryStats() {
  check_has_members();
  return {{"shared_memory", communicator_->group().segment().usage().nbytes()}};
}

void RingBackend::suspend() {
  announced("suspend", {}, 1, [&] {
    check_usable();
    TORCH_CHECK(!coalescing_ && !estimate_,
                "ring: suspend: called between startCoalescing and endCoalescing, or within a time "
                "estimate; end that first");
    TORCH_CHECK_NOT_IMPLEMENTED(!communicator_->group().spans_hosts(),
                                "ring: suspend: the ranks of this group are on several hosts, "
                                "whose memory is not given back");
    const auto timeout = timeout_or_default({});
    const auto give_back = [host = communicator_, timeout](Collectives&) {
      host->give_back(timeout);
    };
    submit({c10d::OpType::BARRIER, "ring:suspend", {}, {}, {}, timeout, /*async=*/false}, give_back)
        ->wait();
    suspended_ = true;
  });
}

void RingBackend::resume() {
  TORCH_CHECK(suspended_.exchange(false), "ring: resume: this group is not suspended");
}

c10::intrusive_ptr<c10d::Backend> RingBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  auto options = c10::make_intrusive<Options>(*options_);
  if (opts) options->timeout = opts->timeout;
  options->group_name = opts ? opts->group_name : "";
  options->global_ranks_in_group.clear();
  if (opts) options->global_ranks_in_group = opts->global_ranks_in_group;
  options->selection.host_of.clear();  // it names the ranks of this group
  options->relative.reset();
  return c10::make_intrusive<RingBackend>(store, rank, size, std::move(options));
}

}  // namespace ringcomm
