// The backend's life: making a group, launching operations in it, ending it.
#include "torch/backend.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torch/errors.h"
#include "torch/store_adapter.h"

namespace ringcomm {
namespace {

std::shared_ptr<Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                int rank, int world_size,
                                                const RingBackend::Options& options) {
  try {
    C10dStore adapter(store);
    return std::make_shared<Communicator>(adapter, rank, world_size, options.algorithm,
                                          options.timeout);
  } catch (const Error&) {
    rethrow_for_torch(std::current_exception());
  }
}

// Threads that end here may be running a user's Python callback, and so need the lock we hold.
void without_gil(const std::function<void()>& body) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    pybind11::gil_scoped_release release;
    body();
  } else {
    body();
  }
}

}  // namespace

RingBackend::RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                         c10::intrusive_ptr<Options> options)
    : Backend(rank, world_size),
      options_(std::move(options)),
      communicator_(make_communicator(store, rank, world_size, *options_)),
      queue_(std::make_shared<Queue>()) {
  init();
}

void RingBackend::eagerConnectSingleDevice(at::Device device) {
  with_torch_errors([&] { device_group(device).connect(options_->timeout); });
}

RingBackend::~RingBackend() {
  close("the process group is closed", /*abort=*/false);
  // Here, as ending them waits for their threads.
  without_gil([&] {
    device_group_.reset();
    queue_.reset();
    communicator_.reset();
  });
}

// The device first: ending it in good order takes all ranks, which the host's group brings
// together.
void RingBackend::shutdown() {
  if (device_group_) without_gil([&] { device_group_->shut_down(options_->timeout); });
  close("the process group is closed", /*abort=*/false);
}

void RingBackend::abort() { close("the process group was aborted", /*abort=*/true); }

void RingBackend::close(const std::string& reason, bool abort) {
  without_gil([&] {
    const std::string who = "rank " + std::to_string(rank_) + ": " + reason;
    if (abort) {
      communicator_->abort(who);
    } else {
      communicator_->close(reason);
    }
    // What is queued now fails at once.
    while (queue_->help()) {
    }
    if (device_group_) device_group_->abort(who);
  });
}

c10::intrusive_ptr<c10d::Backend> RingBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto it = std::find(ranks.begin(), ranks.end(), rank_);
  if (it == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<Options>(*options_);
  if (opts) options->timeout = opts->timeout;
  if (opts) options->group_name = opts->group_name;
  options->global_ranks_in_group.clear();
  for (int r : ranks) {
    const auto& ours = options_->global_ranks_in_group;
    options->global_ranks_in_group.push_back(
        static_cast<std::size_t>(r) < ours.size() ? ours[r] : static_cast<std::uint64_t>(r));
  }
  std::string members;
  for (int r : ranks) members += std::to_string(r) + ",";
  auto own_store = c10::make_intrusive<c10d::PrefixStore>("split/" + members, store);
  return c10::make_intrusive<RingBackend>(own_store, static_cast<int>(it - ranks.begin()),
                                          static_cast<int>(ranks.size()), std::move(options));
}

RingBackend::WorkPtr RingBackend::launch_on_host(Launch launch, std::function<void()> run) {
  const bool in_one_call = coalescing_ && coalescing_->in_one_call;
  auto work = c10::make_intrusive<CollectiveWork>(
      queue_, rank_, launch.type, ++sequence_, in_one_call ? nullptr : launch.title,
      std::optional<Tensors>(std::move(launch.inputs)), std::move(launch.outputs), launch.timeout);
  auto outcome = [](const std::function<void()>& body) -> std::exception_ptr {
    try {
      body();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  };
  if (!launch.async && !coalescing_ && queue_->try_enter()) {
    const std::exception_ptr error = outcome(run);
    queue_->leave();
    work->complete(error);
    return work;
  }
  auto error = std::make_shared<std::exception_ptr>();
  Queue::Operation operation{[run = std::move(run), outcome, error] { *error = outcome(run); },
                             [work, error] { work->complete(*error); }};
  if (coalescing_) coalescing_->parts.push_back(work);
  if (in_one_call) {
    coalescing_->held.push_back(std::move(operation));
  } else {
    queue_->submit(std::move(operation));
  }
  return work;
}

RingBackend::WorkPtr RingBackend::launch_on_device(Launch launch,
                                                   std::function<void(streams::Collectives&)> run) {
  DeviceGroup& group = device_group(launch.memory.front().device());
  const std::uint64_t sequence = ++sequence_;
  const bool in_one_call = coalescing_ && coalescing_->in_one_call;
  if (in_one_call) launch.title = nullptr;
  auto begin = [&group, launch, sequence, run] {
    return with_torch_errors([&] { return group.launch(launch, sequence, run); });
  };
  if (!coalescing_) return begin();
  coalescing_->device = group.device();
  coalescing_->outputs.insert(coalescing_->outputs.end(), launch.outputs.begin(),
                              launch.outputs.end());
  if (!in_one_call) return begin();
  coalescing_->held_on_device.push_back(begin);
  return nullptr;
}

DeviceGroup& RingBackend::device_group(at::Device device) {
  std::lock_guard lock(device_mutex_);
  if (!device_group_) {
    device_group_ = with_torch_errors([&] {
      return make_cuda_group(communicator_->group(), device,
                             {options_->algorithm, options_->num_channels, options_->slice_nbytes,
                              options_->max_ctas, options_->graphs});
    });
  }
  TORCH_CHECK_VALUE(device_group_->device() == device, "ring: got a tensor on ", device,
                    ", but this rank's part of the group is on ", device_group_->device(),
                    "; a rank has one device in a group");
  return *device_group_;
}

bool RingBackend::supportsCoalescing() const { return missing_for_cuda().empty() && at::hasCUDA(); }

RingBackend::WorkPtr RingBackend::coalesce(c10d::OpType type, const char* title,
                                           const Tensors& inputs, const Tensors& outputs,
                                           const std::function<void()>& body) {
  auto outer = std::exchange(coalescing_, Coalescing{.in_one_call = true});
  const std::uint64_t sequence = sequence_;
  try {
    body();
  } catch (...) {
    coalescing_ = std::move(outer);
    sequence_ = sequence;  // none of them has begun
    throw;
  }
  Coalescing coalesced = *std::exchange(coalescing_, std::move(outer));
  for (Queue::Operation& operation : coalesced.held) queue_->submit(std::move(operation));
  for (const auto& begin : coalesced.held_on_device) begin();
  if (coalescing_ && coalesced.device) {
    coalescing_->device = coalesced.device;
    coalescing_->outputs.insert(coalescing_->outputs.end(), outputs.begin(), outputs.end());
  }
  return join(std::move(coalesced), type, title, inputs, outputs);
}

// Operations of an unfinished coalescing, which an exception has ended, are under way as they are.
void RingBackend::startCoalescing() { coalescing_ = Coalescing{.in_one_call = false}; }

RingBackend::WorkPtr RingBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "ring: endCoalescing called without startCoalescing");
  return join(*std::exchange(coalescing_, std::nullopt), c10d::OpType::COALESCED, nullptr,
              std::nullopt, {});
}

RingBackend::WorkPtr RingBackend::join(Coalescing coalesced, c10d::OpType type, const char* title,
                                       const std::optional<Tensors>& inputs,
                                       const Tensors& outputs) {
  if (coalesced.device) {
    TORCH_CHECK_VALUE(coalesced.parts.empty(), "ring: operations on the CPU and on ",
                      *coalesced.device, " cannot be coalesced; make one batch for each");
    DeviceGroup& group = device_group(*coalesced.device);
    const Launch launch{
        type,          title, inputs.value_or(Tensors{}), coalesced.outputs, {}, options_->timeout,
        /*async=*/true};
    return with_torch_errors([&] {
      return coalesced.messages.empty() ? group.join(launch, sequence_)
                                        : group.exchange(launch, sequence_, coalesced.messages);
    });
  }
  auto work = c10::make_intrusive<CoalescedWork>(std::move(coalesced.parts), rank_, type, sequence_,
                                                 title, inputs, outputs, options_->timeout);
  work->start();
  if (coalescing_) coalescing_->parts.push_back(work);
  return work;
}

}  // namespace ringcomm
