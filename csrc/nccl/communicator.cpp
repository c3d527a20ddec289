// A communicator's making and its end. How it connects ranks is in communicator_connecting.cpp, and
// what it enqueues in enqueue.cpp.
#include "nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "nccl/errors.h"

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::seconds kPatienceForAbort{2};
constexpr std::chrono::seconds kPatienceForClose{5};

constexpr int kGroupsAtOnce = 5;

int max_ctas_of(const Options& options, int device) {
  if (!options.shares_device) return options.max_ctas;
  int num = 0;
  RINGCOMM_CHECK(cudaDeviceGetAttribute(&num, cudaDevAttrMultiProcessorCount, device));
  return std::clamp(num / kGroupsAtOnce, 1, options.max_ctas);
}

Options checked(Options options, int world_size, int device) {
  // The most slots that one slice can take: premul_sum, all ranks' pieces and all scaled sends.
  const std::size_t least = 2 * world_size * streams::kAlignment;
  const streams::Layout& layout = options.layout;
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
  options.max_ctas = max_ctas_of(options, device);
  return options;
}

}  // namespace

Communicator::Communicator(Group& group, int device, const Options& options, Host host)
    : DeviceCollectives(group.rank, group.world_size, options.selection),
      group_(group),
      board_(group.board()),
      device_(device),
      options_(checked(options, group.world_size, device)),
      host_(std::move(host)),
      reclaim_([this] {
        if (!captured_) host_.reclaim();
      }),
      connections_(group, device, reclaim_) {
  for (int c = 0; c < options_.layout.num_channels; ++c) {
    ChannelResources& channel = channels_.emplace_back();
    for (int e = 0; e < options_.layout.slices_in_flight; ++e) channel.reduced.emplace_back();
  }
  watchdog_.emplace(
      group, device, [this] { look_around(); }, [this] { return captures_.alive() > 0; },
      [this](const Error& error, bool under_way) { fail(with_waits(error), under_way); });
}

Communicator::~Communicator() {
  watchdog_.reset();
  at_the_end([this] {
    end();
    if (!ended_) leave();
  });
  // What was aborted still runs to its end, in scratch that is about to be freed.
  const RelaxedCapture relaxed;
  for (const ChannelResources& channel : channels_) {
    if (!ended_) break;
    cudaStreamSynchronize(channel.communication.get());
    cudaStreamSynchronize(channel.reduction.get());
  }
}

void Communicator::make_executor(const std::vector<ncclComm_t>& comms) {
  std::vector<streams::Channel<Api>> channels;
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    ChannelResources& own = channels_[c];
    const cudaStream_t stream = own.communication.get();
    if (!comms.empty()) {
      own.scratch = allocate(options_.layout.channel_scratch_nbytes(world_size()), reclaim_);
    }
    streams::Channel<Api> channel{.comm = comms.empty() ? nullptr : comms[c],
                                  .communication = stream,
                                  .reduction = own.reduction.get(),
                                  .scratch = static_cast<std::byte*>(own.scratch.get()),
                                  .communicated = own.communicated.get(),
                                  .reduced = {}};
    for (const Event& event : own.reduced) channel.reduced.push_back(event.get());
    channels.push_back(std::move(channel));
  }
  executor_.emplace(rank(), options_.layout, channels, began_.get());
}

// On the watchdog's thread. A rank that is busy answers by itself.
void Communicator::look_around() {
  connections_.check();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && !closed_) connections_.answer();
}

// What was found wrong, and for whom this rank's kernels wait.
Error Communicator::with_waits(const Error& error) const {
  const FusedExecutor* fused = fused_for_all_.load(std::memory_order_acquire);
  return fused == nullptr
             ? error
             : Error(error.kind(), error.what() + fused->describe_waits(group_.members));
}

void Communicator::fail(const Error& error, bool under_way) {
  if (!failure_->set(error)) return;
  if (!group_.broken()) group_.fail(error.kind(), error.what());
  if (under_way) host_.on_lost_results(error);
  end();
}

void Communicator::abort(const std::string& reason) {
  if (failure_->set(Error(ErrorKind::kClosed, reason))) end();
}

// Ends what is under way, and frees what can be freed.
void Communicator::end() {
  if (FusedExecutor* fused = fused_for_all_.load(std::memory_order_acquire)) fused->give_up();
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto is_mine = [&lock] { return lock.owns_lock() || lock.try_lock(); };
  const Clock::time_point begin = Clock::now();
  while (!is_mine() && Clock::now() - begin < kPatienceForAbort) {
    std::this_thread::sleep_for(kPollEvery);
  }
  // A thread is inside NCCL and waits for a peer that will not come, or a graph holds on to the
  // communicators, so that aborting them would wait.
  const bool interrupts = !lock.owns_lock() || captures_.alive() > 0;
  if (interrupts) ended_ = connections_.interrupt(is_mine) && ended_;
  if (!lock.owns_lock()) return;
  if (!ended_ || captures_.alive() > 0) return leave();
  connections_.abort();
}

// What graphs refer to stays as long as the process.
void Communicator::leave() {
  connections_.leave();
  keep_for_good(captures_.memory());
  keep_for_good(fused_);
  for (const ChannelResources& channel : channels_) keep_for_good(channel.scratch);
}

// Freeing communicators takes all who share them.
bool Communicator::close_together() {
  board_.close(captures_.alive() > 0 ? DeviceBoard::Closing::kHeld : DeviceBoard::Closing::kFree);
  const Clock::time_point begin = Clock::now();
  const auto all_closed = [this] {
    std::lock_guard lock(mutex_);
    connections_.answer();  // what a peer has begun ends before its communicators do
    return connections_.all_met() && board_.least_closed(partners()) != DeviceBoard::Closing::kNot;
  };
  while (!all_closed()) {
    if (group_.broken() || Clock::now() - begin > kPatienceForClose) return false;
    std::this_thread::sleep_for(kPollEvery);
  }
  return true;
}

std::vector<int> Communicator::partners() const {
  if (!fused_) return connections_.partners();
  std::vector<int> all(world_size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// What other ranks may have open is freed when all have closed it; what is unused they have closed
// before.
void Communicator::free_memory() {
  if (unused_memory_) unused_memory_->free();
  if (!fused_) return;
  const Clock::time_point begin = Clock::now();
  while (!fused_->let_go()) {
    if (group_.broken() || Clock::now() - begin > kPatienceForClose) return;
    std::this_thread::sleep_for(kPollEvery);
  }
  fused_for_all_ = nullptr;
  fused_.reset();
}

std::string Communicator::shut_down(Timeout timeout) {
  const bool clean =
      !failure_->get() && watchdog_ && watchdog_->drain(Deadline::in(timeout)) && close_together();
  if (!clean) failure_->set(Error(ErrorKind::kClosed, "the process group is closed"));
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  watchdog_.reset();
  const int held = captures_.alive();
  {
    std::lock_guard lock(mutex_);
    if (clean && held > 0) {
      leave();
    } else if (clean && board_.most_closed(partners()) == DeviceBoard::Closing::kFree) {
      connections_.destroy();
      free_memory();
    }
  }
  end();
  if (held == 0) return "";
  return std::to_string(held) + (held == 1 ? " CUDA graph that was" : " CUDA graphs that were") +
         " captured with operations of this group still " + (held == 1 ? "exists" : "exist") +
         ", so its NCCL communicators and its memory on device " + std::to_string(device_) +
         " were not freed. Delete the graphs before the process group is destroyed";
}

}  // namespace ringcomm::nccl
