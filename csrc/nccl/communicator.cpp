#include "nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "nccl/await.h"
#include "nccl/errors.h"

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::seconds kPatienceForAbort{2};
constexpr std::chrono::seconds kPatienceForClose{5};
constexpr std::chrono::milliseconds kPollEvery{1};

const Options& checked(const Options& options, int world_size) {
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
  return options;
}

// The ids of a group are not known before its ranks meet, and NCCL may allocate when they do.
void check_not_captured(bool captured, const std::string& what) {
  if (!captured) return;
  throw Error(ErrorKind::kInvalidArgument,
              what +
                  " cannot be captured in a CUDA graph, as it connects ranks; make one before "
                  "the capture begins");
}

}  // namespace

Communicator::Communicator(shm::Group& group, int device, const Options& options,
                           const Allocate& allocate)
    : Collectives(group.rank, group.world_size, options.algorithm),
      group_(group),
      board_(group),
      device_(device),
      options_(checked(options, group.world_size)),
      allocate_(allocate),
      messages_(group, device, allocate) {
  for (int c = 0; c < options_.layout.num_channels; ++c) {
    Lane& lane = lanes_.emplace_back();
    for (int e = 0; e < options_.layout.slices_in_flight; ++e) lane.reduced.emplace_back();
  }
  watchdog_.emplace(
      group, device, [this] { look_around(); }, [this](const Error& error) { fail(error); });
}

Communicator::~Communicator() {
  watchdog_.reset();
  end();
  if (!ended_) leave();
  // What was aborted still runs to its end, in scratch that is about to be freed.
  for (const Lane& lane : lanes_) {
    if (!ended_) break;
    cudaStreamSynchronize(lane.communication.get());
    cudaStreamSynchronize(lane.reduction.get());
  }
}

void Communicator::check_open() const {
  failure_->check();
  if (closed_) throw Error(ErrorKind::kClosed, "the process group is closed");
}

// Runs `body` as the only one inside NCCL. What fails half way leaves the ranks with different
// ideas of what was sent, so that breaks the group; a call that was refused does not.
template <typename Body>
auto Communicator::guarded(Body&& body) {
  std::unique_lock lock(mutex_);
  check_open();
  if (group_.broken()) group_.check("a group on device " + std::to_string(device_));
  try {
    return body();
  } catch (const Error& error) {
    watchdog_->forget_unrecorded();
    if (error.kind() == ErrorKind::kInvalidArgument) throw;
    lock.unlock();
    fail(error);
    throw;
  } catch (...) {  // not of ours: of what others enqueue beside it
    watchdog_->forget_unrecorded();
    throw;
  }
}

// body(), with the failures of libraries told as those of what this rank is doing.
template <typename Describe, typename Body>
void Communicator::telling(Describe&& doing, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kLibrary) throw;
    throw Error(ErrorKind::kLibrary, "rank " + std::to_string(rank()) + " in " + doing() +
                                         " on device " + std::to_string(device_) + ": " +
                                         error.what());
  }
}

void Communicator::make_executor(const std::vector<ncclComm_t>& comms) {
  std::vector<streams::Channel<Api>> channels;
  for (std::size_t c = 0; c < lanes_.size(); ++c) {
    Lane& lane = lanes_[c];
    const cudaStream_t stream = lane.communication.get();
    if (!comms.empty()) {
      lane.scratch = allocate_(options_.layout.channel_scratch_nbytes(), stream);
    }
    streams::Channel<Api> channel{.comm = comms.empty() ? nullptr : comms[c],
                                  .communication = stream,
                                  .reduction = lane.reduction.get(),
                                  .scratch = static_cast<std::byte*>(lane.scratch.get()),
                                  .communicated = lane.communicated.get(),
                                  .reduced = {}};
    for (const Event& event : lane.reduced) channel.reduced.push_back(event.get());
    channels.push_back(std::move(channel));
  }
  executor_.emplace(rank(), options_.layout, channels, began_.get());
}

void Communicator::connect(Timeout timeout) {
  guarded([&] { connect_all(shm::Deadline::in(timeout)); });
}

void Communicator::connect_all(const shm::Deadline& deadline) {
  if (executor_) return;
  board_.join();
  if (world_size() == 1) return make_executor({});
  if (rank() == 0 && !board_.greeting_to_all(0)) board_.greet_all(Meeting::new_id());
  std::vector<cudaStream_t> streams;
  for (const Lane& lane : lanes_) streams.push_back(lane.communication.get());
  const int ctas = std::max(1, options_.max_ctas / static_cast<int>(lanes_.size()));
  Meeting meeting(
      {rank(), world_size(), device_, ctas}, streams, [this] { return board_.greeting_to_all(0); },
      allocate_);
  const std::string doing = "connecting its device with those of all ranks";
  telling([&] { return doing; },
          [&] {
            await(
                group_, deadline, doing,
                [&] {
                  failure_->check();
                  answer();
                  return meeting.progress();
                },
                [this] { return board_.not_joined(); });
          });
  comms_ = meeting.take();
  make_executor(comms_->get());
  publish_comms();
}

void Communicator::connect_pairs(const std::vector<Message>& messages,
                                 const shm::Deadline& deadline) {
  const auto ready = [&](const Message& message) { return messages_.ready(message.peer); };
  if (std::all_of(messages.begin(), messages.end(), ready)) return;
  check_not_captured(captured_, "the first message between two ranks");
  std::vector<int> peers;
  for (const Message& message : messages) peers.push_back(message.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  await(
      group_, deadline, describe(messages.front()) + ", connecting to " + describe_ranks(peers),
      [&] {
        failure_->check();
        answer();
        return std::all_of(messages.begin(), messages.end(), ready);
      },
      [&] {
        std::vector<int> absent;
        for (const int peer : peers) {
          if (!messages_.has_come(peer)) absent.push_back(peer);
        }
        return absent;
      });
}

void Communicator::answer() {
  if (messages_.answer()) publish_comms();
}

// On the watchdog's thread. A rank that is busy answers by itself.
void Communicator::look_around() {
  {
    std::lock_guard lock(comms_mutex_);
    check_async(interruptible_);
  }
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && !closed_) answer();
}

void Communicator::publish_comms() {
  std::lock_guard lock(comms_mutex_);
  interruptible_ = messages_.comms();
  if (!comms_) return;
  interruptible_.insert(interruptible_.end(), comms_->get().begin(), comms_->get().end());
}

Enqueued Communicator::enqueue(cudaStream_t user,
                               const std::function<void(streams::Collectives&)>& body) {
  return guarded([&] {
    captured_ = captures_.note(user, origin_.get());
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), user));
    RINGCOMM_CHECK(cudaStreamWaitEvent(origin_.get(), began_.get(), 0));
    captures_.begin(origin_.get(), captured_);
    under_way_ = ends_.take();
    body(*this);
    captures_.end(origin_.get(), captured_);
    under_way_->record(origin_.get(), captured_);
    return Enqueued{std::move(under_way_), origin_.get()};
  });
}

void Communicator::run(Call call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, Timeout timeout) {
  const shm::Deadline deadline = shm::Deadline::in(timeout);
  if (!executor_) {
    check_not_captured(captured_, "the first collective of a group");
    connect_all(deadline);
  }
  call.sequence = ++sequence_;
  board_.enqueue(call);
  if (!captured_) watchdog_->add({call, deadline, under_way_});
  telling([&] { return describe_numbered(call); },
          [&] {
            api_.push_collective(to_string(call.collective));
            executor_->run(api_, program, chunks, reduction, origin_.get());
            api_.pop_range();
          });
}

Enqueued Communicator::exchange(cudaStream_t user, const std::vector<Message>& messages,
                                Timeout timeout,
                                const std::function<void(std::size_t, cudaStream_t)>& after) {
  const shm::Deadline deadline = shm::Deadline::in(timeout);
  return guarded([&] {
    captured_ = captures_.note(user, origin_.get());
    connect_pairs(messages, deadline);
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), user));
    std::vector<Enqueued> ends;  // by stream
    for (const Message& message : messages) {
      const cudaStream_t stream = messages_.stream_of(message);
      const auto known = [&](const Enqueued& enqueued) { return enqueued.stream == stream; };
      if (std::any_of(ends.begin(), ends.end(), known)) continue;
      ends.push_back({ends_.take(), stream});
      RINGCOMM_CHECK(cudaStreamWaitEvent(stream, began_.get(), 0));
      if (!captured_) watchdog_->add({message, deadline, ends.back().end});
    }
    telling([&] { return describe(messages.front()); }, [&] { messages_.enqueue(messages); });
    for (std::size_t i = 0; i < messages.size(); ++i) after(i, messages_.stream_of(messages[i]));
    for (const Enqueued& enqueued : ends) enqueued.end->record(enqueued.stream, captured_);
    if (ends.size() == 1) return ends.back();
    // One stream for whoever waits for all.
    const Enqueued all{ends_.take(), ends.back().stream};
    for (const Enqueued& enqueued : ends) {
      if (enqueued.stream != all.stream) enqueued.end->make_wait(all.stream);
    }
    all.end->record(all.stream, captured_);
    return all;
  });
}

Enqueued Communicator::end_of_all() {
  return guarded([&] {
    const Enqueued enqueued{ends_.take(), origin_.get()};
    enqueued.end->record(origin_.get(), captured_);
    return enqueued;
  });
}

void Communicator::fail(const Error& error) {
  if (!failure_->set(error)) return;
  if (!group_.broken()) group_.fail(error.kind(), error.what());
  end();
}

void Communicator::abort(const std::string& reason) {
  if (failure_->set(Error(ErrorKind::kClosed, reason))) end();
}

// Ends what is under way, and frees what can be freed.
void Communicator::end() {
  std::vector<ncclComm_t> comms;
  {
    std::lock_guard lock(comms_mutex_);
    comms = std::exchange(interruptible_, {});
  }
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto is_mine = [&lock] { return lock.owns_lock() || lock.try_lock(); };
  const shm::Clock::time_point begin = shm::Clock::now();
  while (!is_mine() && shm::Clock::now() - begin < kPatienceForAbort) {
    std::this_thread::sleep_for(kPollEvery);
  }
  // A thread is inside NCCL and waits for a peer that will not come, or a graph holds on to the
  // communicators, so that aborting them would wait.
  const bool needs_interruption = !lock.owns_lock() || captures_.alive() > 0;
  if (needs_interruption && !comms.empty()) {
    ended_ = Interruption(std::move(comms)).succeeds(is_mine);
  }
  if (!lock.owns_lock()) return;
  if (!ended_ || captures_.alive() > 0) return leave();
  if (comms_) comms_->abort();
  messages_.abort();
}

// What graphs refer to stays as long as the process.
void Communicator::leave() {
  static std::mutex mutex;
  static auto& left = *new std::vector<std::shared_ptr<void>>;
  if (comms_) comms_->leave();
  messages_.leave();
  captures_.leave();
  {
    std::lock_guard lock(comms_mutex_);
    interruptible_.clear();
  }
  std::lock_guard lock(mutex);
  for (const Lane& lane : lanes_) left.push_back(lane.scratch);
}

// Those that share communicators with this one.
std::vector<int> Communicator::partners() const {
  if (!comms_) return messages_.peers();
  std::vector<int> all(world_size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Freeing communicators takes all who share them.
bool Communicator::close_together() {
  board_.close(captures_.alive() > 0 ? shm::Board::Closing::kHeld : shm::Board::Closing::kFree);
  const shm::Clock::time_point begin = shm::Clock::now();
  const auto all_closed = [this] {
    std::lock_guard lock(mutex_);
    answer();  // what a peer has begun ends before its communicators do
    return messages_.all_met() && board_.least_closed(partners()) != shm::Board::Closing::kNot;
  };
  while (!all_closed()) {
    if (group_.broken() || shm::Clock::now() - begin > kPatienceForClose) return false;
    std::this_thread::sleep_for(kPollEvery);
  }
  return true;
}

std::string Communicator::shut_down(Timeout timeout) {
  const bool clean = !failure_->get() && watchdog_ &&
                     watchdog_->drain(shm::Deadline::in(timeout)) && close_together();
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
    } else if (clean && board_.most_closed(partners()) == shm::Board::Closing::kFree) {
      messages_.destroy();
      if (comms_) comms_->destroy();
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
