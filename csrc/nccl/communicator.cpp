#include "nccl/communicator.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "nccl/errors.h"

namespace ringcomm::nccl {
namespace {

constexpr const char* kIdKey = "nccl id";
constexpr std::chrono::seconds kPatienceForAbort{2};
constexpr std::chrono::seconds kPatienceForClose{5};

const streams::Layout& checked(const streams::Layout& layout, int world_size) {
  // The most slots that one slice can take: premul_sum, all ranks' pieces and all scaled sends.
  const std::size_t least = 2 * world_size * streams::kAlignment;
  if (layout.num_channels < 1) {
    throw Error(ErrorKind::kInvalidArgument, "the number of channels (RINGCOMM_CHANNELS) is " +
                                                 std::to_string(layout.num_channels) +
                                                 "; it must be at least 1");
  }
  if (layout.slice_nbytes < least) {
    throw Error(ErrorKind::kInvalidArgument,
                "slices (RINGCOMM_SLICE_BYTES) of " + std::to_string(layout.slice_nbytes) +
                    " bytes are too small for " + std::to_string(world_size) +
                    " ranks; they need at least " + std::to_string(least));
  }
  return layout;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  RINGCOMM_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Communicator::Communicator(shm::Group& group, Store& store, int device, const Options& options,
                           const Allocate& allocate, Timeout timeout)
    : Collectives(group.rank, group.world_size, options.algorithm),
      group_(group),
      board_(group),
      device_(device),
      comms_(make_comms(store, options, timeout)),
      executor_(make_executor(options, allocate)),
      messages_(group, store) {
  publish_comms();
  watchdog_.emplace(
      group, device,
      [this] {
        std::lock_guard lock(failure_mutex_);
        check_async(interruptible_);
      },
      [this](const Error& error) { fail(error); });
}

Communicator::~Communicator() {
  watchdog_.reset();
  end();
  // What was aborted still runs to its end, in scratch that is about to be freed.
  for (const Lane& lane : lanes_) {
    cudaStreamSynchronize(lane.communication.get());
    cudaStreamSynchronize(lane.reduction.get());
  }
}

std::unique_ptr<Comms> Communicator::make_comms(Store& store, const Options& options,
                                                Timeout timeout) {
  const int num_channels = checked(options.layout, world_size()).num_channels;
  if (world_size() == 1) return nullptr;
  const shm::Deadline deadline = shm::Deadline::in(timeout);
  const DeviceGuard guard(device_);
  ncclUniqueId id;
  if (rank() == 0) {
    RINGCOMM_CHECK(ncclGetUniqueId(&id));
    store.set(kIdKey, std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string text = store.get(kIdKey, timeout);
    std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof(id.internal)));
  }
  auto comms = std::make_unique<Comms>(id, rank(), world_size(), num_channels,
                                       std::max(1, options.max_ctas / num_channels));
  await(group_, deadline, "making NCCL communicators on device " + std::to_string(device_),
        [&] { return comms->progress(); });
  return comms;
}

Communicator::Executor Communicator::make_executor(const Options& options,
                                                   const Allocate& allocate) {
  const DeviceGuard guard(device_);
  std::vector<streams::Channel<Api>> channels;
  for (int c = 0; c < options.layout.num_channels; ++c) {
    const ncclComm_t comm = comms_ ? comms_->get()[c] : nullptr;
    Lane& lane = lanes_.emplace_back();
    for (int e = 0; e < options.layout.slices_in_flight; ++e) lane.reduced.emplace_back();
    const cudaStream_t stream = c == 0 ? origin_.get() : lane.communication.get();
    if (comm != nullptr)
      lane.scratch = allocate(options.layout.channel_scratch_nbytes(world_size()), stream);
    streams::Channel<Api> channel{.comm = comm,
                                  .communication = stream,
                                  .reduction = lane.reduction.get(),
                                  .scratch = static_cast<std::byte*>(lane.scratch.get()),
                                  .communicated = lane.communicated.get(),
                                  .reduced = {}};
    for (const Event& event : lane.reduced) channel.reduced.push_back(event.get());
    channels.push_back(std::move(channel));
  }
  return Executor(rank(), options.layout, channels, began_.get());
}

void Communicator::publish_comms() {
  std::lock_guard lock(failure_mutex_);
  interruptible_ = messages_.comms();
  if (!comms_) return;
  interruptible_.insert(interruptible_.end(), comms_->get().begin(), comms_->get().end());
}

// Runs `body` as the only one inside NCCL. A library that fails half way leaves the ranks with
// different ideas of what was sent, so that breaks the group.
template <typename Body>
void Communicator::guarded(const std::string& what, Body&& body) {
  std::unique_lock lock(mutex_);
  if (const std::exception_ptr error = failure()) std::rethrow_exception(error);
  if (group_.broken()) group_.check(what);
  try {
    const DeviceGuard guard(device_);
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kLibrary) throw;
    lock.unlock();
    const Error described(ErrorKind::kLibrary, "rank " + std::to_string(rank()) + " in " + what +
                                                   " on device " + std::to_string(device_) + ": " +
                                                   error.what());
    fail(described);
    throw described;
  }
}

void Communicator::run(Call call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, Timeout timeout) {
  guarded(describe(call), [&] {
    call.sequence = ++sequence_;
    board_.enqueue(call);
    api_.push_collective(to_string(call.collective));
    executor_.run(api_, program, chunks, reduction);
    api_.pop_range();
    if (is_capturing(origin_.get())) return;
    Pending pending{describe_numbered(call), call.sequence, /*peer=*/-1, shm::Deadline::in(timeout),
                    watchdog_->new_event()};
    RINGCOMM_CHECK(cudaEventRecord(pending.end.get(), origin_.get()));
    watchdog_->add(std::move(pending));
  });
}

std::vector<cudaStream_t> Communicator::run(const std::vector<Message>& messages, cudaEvent_t begin,
                                            Timeout timeout) {
  std::vector<cudaStream_t> streams;
  if (messages.empty()) return streams;
  guarded(nccl::describe(messages.front()), [&] {
    const shm::Deadline deadline = shm::Deadline::in(timeout);
    streams = messages_.run(messages, begin, deadline);
    publish_comms();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (is_capturing(streams[i])) continue;
      Pending pending{nccl::describe(messages[i]), /*sequence=*/0, messages[i].peer, deadline,
                      watchdog_->new_event()};
      RINGCOMM_CHECK(cudaEventRecord(pending.end.get(), streams[i]));
      watchdog_->add(std::move(pending));
    }
  });
  return streams;
}

std::exception_ptr Communicator::failure() const {
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

bool Communicator::set_failure(const Error& error) {
  std::lock_guard lock(failure_mutex_);
  if (failure_) return false;
  failure_ = std::make_exception_ptr(error);
  return true;
}

void Communicator::fail(const Error& error) {
  if (!set_failure(error)) return;
  if (!group_.broken()) group_.fail(error.kind(), error.what());
  end();
}

void Communicator::abort(const std::string& reason) {
  if (set_failure(Error(ErrorKind::kClosed, reason))) end();
}

void Communicator::end() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  const shm::Clock::time_point begin = shm::Clock::now();
  while (!lock.owns_lock() && shm::Clock::now() - begin < kPatienceForAbort) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.try_lock();
  }
  if (!lock.owns_lock()) {
    // A thread waits inside NCCL for a peer that will not come.
    std::vector<ncclComm_t> comms;
    {
      std::lock_guard guard(failure_mutex_);
      comms = interruptible_;
    }
    interrupt(comms);
    lock.lock();
  }
  {
    std::lock_guard guard(failure_mutex_);
    interruptible_.clear();
  }
  if (comms_) comms_->abort();
  messages_.abort();
}

void Communicator::shut_down(Timeout timeout) {
  bool clean = !failure() && watchdog_->drain(shm::Deadline::in(timeout));
  if (clean) {
    board_.close();
    const shm::Clock::time_point begin = shm::Clock::now();
    while (!board_.all_closed() && !group_.broken() &&
           shm::Clock::now() - begin < kPatienceForClose) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    clean = board_.all_closed();
  }
  set_failure(Error(ErrorKind::kClosed, "the process group is closed"));
  watchdog_.reset();
  if (clean && comms_) {
    std::scoped_lock lock(mutex_, failure_mutex_);
    interruptible_.clear();
    const DeviceGuard guard(device_);
    messages_.destroy();
    comms_->destroy();
  }
  end();
}

}  // namespace ringcomm::nccl
