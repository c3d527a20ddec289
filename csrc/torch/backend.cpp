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

RingBackend::~RingBackend() { close("the process group is closed", /*abort=*/false); }

void RingBackend::shutdown() { close("the process group is closed", /*abort=*/false); }

void RingBackend::abort() { close("the process group was aborted", /*abort=*/true); }

void RingBackend::close(const std::string& reason, bool abort) {
  without_gil([&] {
    if (abort) {
      communicator_->abort("rank " + std::to_string(rank_) + ": " + reason);
    } else {
      communicator_->close(reason);
    }
    // What is queued now fails at once.
    while (queue_->help()) {
    }
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

RingBackend::WorkPtr RingBackend::launch(Launch launch, std::function<void()> run) {
  const bool own_event = !coalescing_ || !coalescing_->in_one_event;
  auto work = c10::make_intrusive<CollectiveWork>(
      queue_, rank_, launch.type, ++sequence_, own_event ? launch.title : nullptr,
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
  queue_->submit({[run = std::move(run), outcome, error] { *error = outcome(run); },
                  [work, error] { work->complete(*error); }});
  if (coalescing_) coalescing_->parts.push_back(work);
  return work;
}

RingBackend::WorkPtr RingBackend::coalesce(c10d::OpType type, const char* title,
                                           const Tensors& inputs, const Tensors& outputs,
                                           const std::function<void()>& body) {
  TORCH_CHECK(!coalescing_, "ring: a coalesced operation inside startCoalescing/endCoalescing");
  coalescing_ = Coalescing{.in_one_event = true, .parts = {}};
  try {
    body();
  } catch (...) {
    coalescing_.reset();
    throw;
  }
  return join(type, title, inputs, outputs);
}

void RingBackend::startCoalescing() {
  TORCH_CHECK(!coalescing_, "ring: startCoalescing called twice without endCoalescing");
  coalescing_ = Coalescing{.in_one_event = false, .parts = {}};
}

RingBackend::WorkPtr RingBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "ring: endCoalescing called without startCoalescing");
  return join(c10d::OpType::COALESCED, nullptr, std::nullopt, {});
}

RingBackend::WorkPtr RingBackend::join(c10d::OpType type, const char* title,
                                       const std::optional<Tensors>& inputs,
                                       const Tensors& outputs) {
  Coalescing coalesced = *std::exchange(coalescing_, std::nullopt);
  auto work = c10::make_intrusive<CoalescedWork>(std::move(coalesced.parts), rank_, type, sequence_,
                                                 title, inputs, outputs, options_->timeout);
  work->start();
  return work;
}

}  // namespace ringcomm
