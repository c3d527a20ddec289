// What torch asks of a backend beside communication: memory, times, and what is under way.
#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include <algorithm>

#include "core/deadline.h"
#include "core/poll.h"
#include "plan/collective.h"
#include "shm/group.h"
#include "torch/announced.h"
#include "torch/device.h"
#include "torch/python.h"
#include "torch/shared_memory.h"

namespace ringcomm {
namespace {

constexpr std::chrono::microseconds kLookAtWorks{100};

// Torch before 2.15 would look for Python methods that a backend in C++ does not have.
constexpr bool kTorchAsks = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

std::uint64_t nbytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t nbytes = 0;
  for (const at::Tensor& tensor : tensors) nbytes += tensor.numel() * tensor.element_size();
  return nbytes;
}

// The size of the larger of a rank's two buffers. In a gather and a scatter only the root has it.
std::uint64_t nbytes_of(const Operation& operation, int world_size) {
  const std::uint64_t input = nbytes_of(operation.inputs);
  const std::uint64_t output = nbytes_of(operation.outputs);
  if (operation.type == c10d::OpType::GATHER) return world_size * input;
  if (operation.type == c10d::OpType::SCATTER) return world_size * output;
  return std::max(input, output);
}

}  // namespace

void RingBackend::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  TORCH_CHECK_VALUE(timeout >= std::chrono::milliseconds(0),
                    "ring: addEphemeralTimeout adds at least 0 ms to a group's timeout, got ",
                    timeout.count());
  extension_->add(bounded(timeout));
}

void RingBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(!hasHooks(), "ring: this group has an onCompletion hook already; it can have one");
  observer_->hooks.work_info.add(0, hook);
  onCompletionHook_ = std::move(hook);
  observer_->time_calls();
}

// Without the lock, because hooks may use the group.
void RingBackend::note_completed_on_device() {
  DeviceGroup* device = nullptr;
  {
    std::lock_guard lock(device_mutex_);
    device = device_group_.get();
  }
  if (device != nullptr) device->note_completed();
}

void RingBackend::waitForPendingWorks() {
  check_usable();
  const CallGuard inside;
  without_gil([&] {
    for (Poll poll(kLookAtWorks); observer_->has_work_under_way();) {
      if (queue_->help()) continue;
      note_completed_on_device();
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

c10d::ErrorType RingBackend::getError() {
  if (!communicator_) return c10d::ErrorType::SUCCESS;
  const std::optional<ErrorKind> failure = communicator_->group().failure();
  if (!failure || *failure == ErrorKind::kClosed) return c10d::ErrorType::SUCCESS;
  if (*failure == ErrorKind::kTimeout) return c10d::ErrorType::TIMEOUT;
  return *failure == ErrorKind::kPeerDied ? c10d::ErrorType::REMOTE_ERROR
                                          : c10d::ErrorType::COMM_ERROR;
}

// Between startTimeEstimate and endTimeEstimate this rank's collectives are not carried out, and
// what they would take is added up. No other rank knows of it.
//
// Empty: it can.
std::string RingBackend::why_no_estimate() const {
  if (!communicator_) return "the group has no members yet";
  if (device_group_) return "this group has sent CUDA tensors, whose times are not estimated";
  if (!options_->selection.choices.empty()) {
    return "this group has been told its algorithm, and times are measured of groups that choose";
  }
  if (communicator_->group().spans_hosts()) return "the ranks of this group are on several hosts";
  if (!options_->times.knows(size_)) {
    return "there are no measured times of groups of " + std::to_string(size_) +
           " ranks on this machine; `python -m ringcomm tune --world-sizes " +
           std::to_string(size_) + "` measures them, for groups that are made afterwards";
  }
  return "";
}

// Where there are GPUs, torch's compiler would have calls on CUDA tensors estimated.
bool RingBackend::supportsTimeEstimation() const {
  return kTorchAsks && !supportsCoalescing() && why_no_estimate().empty();
}

void RingBackend::startTimeEstimate() {
  check_usable();
  TORCH_CHECK(!estimate_,
              "ring: startTimeEstimate: this group's time estimate has started already; "
              "endTimeEstimate ends it");
  TORCH_CHECK(!coalescing_,
              "ring: startTimeEstimate: called between startCoalescing and endCoalescing; call it "
              "before them");
  const std::string why = why_no_estimate();
  TORCH_CHECK_NOT_IMPLEMENTED(why.empty(), "ring: startTimeEstimate: ", why);
  estimate_ = 0;
}

float RingBackend::endTimeEstimate() {
  TORCH_CHECK(estimate_,
              "ring: endTimeEstimate: no time estimate of this group is under way; "
              "startTimeEstimate starts one, and a call in it that is refused ends it");
  return static_cast<float>(*std::exchange(estimate_, std::nullopt) * 1e6);
}

RingBackend::WorkPtr RingBackend::add_to_estimate(Operation operation) {
  const std::optional<Collective> collective = kind_of(operation.type).collective;
  const std::optional<double> seconds =
      collective ? options_->times.seconds(size_, *collective, nbytes_of(operation, size_))
                 : std::nullopt;
  if (!seconds) refuse_in_estimate(c10d::opTypeToString(operation.type));
  *estimate_ += *seconds;
  operation.title = nullptr;  // there is nothing for a profiler to see
  operation.sequence = sequence_;
  auto work = c10::make_intrusive<CoalescedWork>(rank_, std::move(operation),
                                                 std::vector<c10::intrusive_ptr<RingWork>>());
  work->await_parts();
  return work;
}

void RingBackend::refuse_in_estimate(const std::string& what) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "ring: ", what,
      ": no such call can be in a time estimate, only dense collectives on the CPU whose times "
      "were measured. The estimate has ended");
}

}  // namespace ringcomm
