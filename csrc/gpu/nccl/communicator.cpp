// How a communicator is made, what it enqueues while all is well, and how it ends.
// communicator_connecting.cpp says how it connects its ranks.
#include "gpu/nccl/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/poll.h"
#include "gpu/nccl/handles.h"
#include "gpu/streams/device_collectives.h"

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

Priority priority_of(const Options& options) {
  return options.is_high_priority_stream ? Priority::kHighest : Priority::kNormal;
}

Options checked(Options options, int world_size, int device) {
  // premul_sum needs the most slots for one slice: all ranks' pieces and all scaled sends.
  const std::size_t least = 2 * world_size * streams::kAlignment;
  const streams::Layout& layout = options.layout;
  if (layout.num_channels < 1) {
    throw Error(ErrorKind::kInvalidArgument, "the number of channels is " +
                                                 std::to_string(layout.num_channels) +
                                                 "; it must be at least 1");
  }
  if (layout.slice_nbytes < least) {
    throw Error(ErrorKind::kInvalidArgument,
                "slice_nbytes is " + std::to_string(layout.slice_nbytes) + "; " +
                    std::to_string(world_size) + " ranks need at least " + std::to_string(least));
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
      allocator_{.reclaim =
                     [this] {
                       if (!captured_) host_.reclaim();
                     },
                 .held = counted_.held},
      connections_(group, device, priority_of(options), allocator_) {
  for (int c = 0; c < options_.layout.num_channels; ++c) {
    ChannelResources& channel = channels_.emplace_back(priority_of(options));
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
    await_readers();
  });
  // Aborted work still runs to its end, in scratch that is about to be freed.
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
      own.scratch = allocate(options_.layout.channel_scratch_nbytes(world_size()), allocator_);
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

// The watchdog's thread calls this. If the rank is inside NCCL, it answers by itself.
void Communicator::look_around() {
  connections_.check();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && !closed_) connections_.answer();
}

// The error, and the ranks that this rank's kernels wait for.
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
  if (failure_->set(Error(ErrorKind::kClosed, reason))) {
    if (watchdog_) watchdog_->abandon();
    end();
  }
  await_readers();
}

// Ends what is under way, and frees what can be freed.
void Communicator::end() {
  if (FusedExecutor* fused = fused_for_all_.load(std::memory_order_acquire)) fused->give_up();
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto is_mine = [&lock] { return lock.owns_lock() || lock.try_lock(); };
  poll_for(kPatienceForAbort, Poll(kPollEvery), is_mine);
  // A thread is inside NCCL and waits for a peer that does not answer, or a graph refers to the
  // communicators, so that aborting them would wait.
  const bool interrupts = !lock.owns_lock() || captures_.alive() > 0;
  if (interrupts) ended_ = connections_.interrupt(is_mine) && ended_;
  if (!lock.owns_lock()) return;
  publish_stopped();
  if (!ended_ || captures_.alive() > 0) return leave();
  connections_.end(&Comms::abort);
}

// Keeps what graphs refer to as long as the process.
void Communicator::leave() {
  connections_.end(&Comms::leave);
  keep_for_good(captures_.memory());
  keep_for_good(fused_);
  for (const ChannelResources& channel : channels_) keep_for_good(channel.scratch);
}

// A rank that leaves waits for the kernels that were announced before it said so, and for no other
// one. Each side first writes what the other one reads.
void Communicator::check_none_leaves(const Call& call) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < world_size(); ++r) {
    if (board_.access_of(r) < DeviceBoard::Access::kLeaving) continue;
    std::string how = "it has left";
    group_.gone(r, &how);
    throw Error(ErrorKind::kPeerDied, group_.members.name(rank()) + " in " +
                                          describe_numbered(call, group_.members) + ": " +
                                          will_not_answer(group_.members.name(r), how));
  }
}

// The event happens when this rank's kernels have ended, also those of replays that were launched.
void Communicator::record_stop() {
  captures_.begin(stream(), /*captured=*/false);
  RINGCOMM_CHECK(cudaEventRecord(stopped_.get(), stream()));
}

// Called when nothing more is enqueued. A graph may still be launched at any time.
void Communicator::publish_stopped() {
  if (!fused_for_all_ || captures_.alive() > 0) return;
  bool have_ended = false;
  error_of([&] {
    record_stop();
    have_ended = poll_for(kPatienceForAbort, Poll(kPollEvery), [&] { return stopped_.happened(); });
  });
  if (have_ended) board_.set_access(DeviceBoard::Access::kStopped);
}

// Whether a kernel of the peer may use this rank's memory, in calls up to that one. Replays are not
// announced.
bool Communicator::is_read_by(int peer, std::uint64_t sequence) {
  if (peer == rank() || board_.access_of(peer) >= DeviceBoard::Access::kStopped) return false;
  if (board_.least_closed({peer}) != DeviceBoard::Closing::kNot) return false;
  if (!captures_.ever() && board_.completed(peer) >= sequence) return false;
  return !group_.has_ended(peer);
}

// Whether a kernel of another rank that has begun, or that has been announced, may do so.
bool Communicator::is_read() {
  for (int r = 0; r < world_size(); ++r) {
    if (is_read_by(r, board_.enqueued(r))) return true;
  }
  return false;
}

// A rank leaves here if not all leave together. When this returns, its process may end, and its
// device's memory with it.
//
// Other ranks fail because this one is gone, and give up their kernels. One that does not, as it is
// stopped or its device hangs, is not waited for longer than that takes.
void Communicator::await_readers() {
  if (!fused_for_all_) return;
  std::call_once(awaited_readers_, [this] {
    board_.set_access(DeviceBoard::Access::kLeaving);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    poll_for(kPatienceForClose, Poll(kPollEvery), [this] { return !is_read(); });
  });
}

// All ranks that share communicators must free them together. A rank that is late with a call may
// still read this rank's part of it: it is awaited until the deadline, all others for a short time.
bool Communicator::close_together(const Deadline& deadline) {
  if (fused_ && captures_.ever()) {
    {
      std::lock_guard lock(mutex_);
      record_stop();
    }
    const auto is_over = [this] { return stopped_.happened() || group_.broken(); };
    if (!poll_for(deadline.timeout, Poll(kPollEvery), is_over)) return false;
  }
  board_.close(captures_.alive() > 0 ? DeviceBoard::Closing::kHeld : DeviceBoard::Closing::kFree);
  const auto all_closed = [this] {
    std::lock_guard lock(mutex_);
    connections_.answer();  // connections that a peer has begun are made before it closes
    return connections_.all_connected() &&
           board_.least_closed(partners()) != DeviceBoard::Closing::kNot;
  };
  const auto is_needed = [this](int peer) {
    std::string how;
    return fused_ && is_read_by(peer, sequence_) && !group_.gone(peer, &how);
  };
  const Clock::time_point start = Clock::now();
  for (Poll poll(kPollEvery); !all_closed(); poll.sleep()) {
    if (group_.broken()) return false;
    if (!poll.looks_around() || Clock::now() - start < kPatienceForClose) continue;
    check_interrupt();
    bool needed = false;
    for (int r = 0; r < world_size() && !needed; ++r) needed = is_needed(r);
    if (!needed || deadline.has_passed()) return false;
  }
  return true;
}

std::vector<int> Communicator::partners() const {
  if (!fused_) return connections_.partners();
  std::vector<int> all(world_size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Memory that other ranks may have open is freed when all of them have closed it. Unused memory
// they have closed before.
void Communicator::free_memory() {
  if (unused_memory_) unused_memory_->free();
  if (!fused_) return;
  bool let_go = false;
  poll_for(kPatienceForClose, Poll(kPollEvery),
           [&] { return (let_go = fused_->let_go()) || group_.broken(); });
  if (!let_go) return;
  fused_for_all_ = nullptr;
  fused_.reset();
}

std::string Communicator::shut_down(Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const bool clean =
      !failure_->get() && watchdog_ && watchdog_->drain(deadline) && close_together(deadline);
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
      connections_.end(&Comms::destroy);
      free_memory();
    }
  }
  end();
  if (!clean) await_readers();
  if (held == 0) return "";
  return std::to_string(held) + (held == 1 ? " CUDA graph that was" : " CUDA graphs that were") +
         " captured with operations of this group still " + (held == 1 ? "exists" : "exist") +
         ", so its NCCL communicators and its memory on device " + std::to_string(device_) +
         " were not freed. Delete the graphs before the process group is destroyed";
}

void Communicator::check_open() const {
  failure_->check();
  if (closed_) throw Error(ErrorKind::kClosed, "the process group is closed");
}

// Runs `body` while no other thread is inside NCCL. After a call that fails half way the ranks
// disagree about what was sent, so it breaks the group. A call that was refused does not.
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
    watchdog_->abandon();
    fail(error);
    failure_->check();  // throws the first cause: NCCL's error may only be a consequence of it
    throw;
  } catch (...) {  // an error of code that enqueues through `body`, not of this library
    watchdog_->forget_unrecorded();
    throw;
  }
}

void Communicator::connect(Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  guarded([&] {
    connect_all(deadline);
    std::vector<int> peers;
    for (int r = 0; r < world_size() && !has_edge_.empty(); ++r) {
      if (!has_edge_[r]) peers.push_back(r);
    }
    connect_edges(peers, deadline);
  });
}

std::shared_ptr<EventHandle> Communicator::take_event(Timing timing) {
  return (timing == Timing::kOn && !captured_ ? timed_pool_ : event_pool_).take();
}

// Null if nothing is timed.
std::shared_ptr<EventHandle> Communicator::record_start(Timing timing, cudaStream_t stream) {
  if (timing == Timing::kOff || captured_) return nullptr;
  std::shared_ptr<EventHandle> start = timed_pool_.take();
  start->record(stream, /*captured=*/false);
  return start;
}

Enqueued Communicator::enqueue_behind(cudaStream_t user,
                                      const std::function<void(Collectives&)>& body,
                                      Timing timing) {
  return guarded([&] {
    captured_ = captures_.note(user, stream());
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), user));
    RINGCOMM_CHECK(cudaStreamWaitEvent(stream(), began_.get(), 0));
    captures_.begin(stream(), captured_);
    const auto start = record_start(timing, stream());
    under_way_ = take_event(timing);
    body(*this);
    captures_.end(stream(), captured_);
    under_way_->record(stream(), captured_);
    return Enqueued{std::move(under_way_), stream(), start};
  });
}

void Communicator::announce(Call& call, const Deadline& deadline) {
  connect_all(deadline);
  call.sequence = ++sequence_;
  board_.enqueue(call);
}

// Once all are connected, it is known whether all ranks reach each other's memory.
void Communicator::prepare_choice(Timeout timeout) { connect_all(Deadline::in(timeout)); }

bool Communicator::goes_by_kernels() const {
  return fused_ && streams::by_kernel(options_.executor, options_.auto_is_fused).lanes;
}

void Communicator::announce_refused(Call call, Timeout timeout) {
  announce(call, Deadline::in(timeout));
}

void Communicator::enqueue_program(Call call, const Program& program, std::span<const Chunk> chunks,
                                   const Reduction& reduction, Timeout timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const bool is_eager = fused_ && fused_->is_eager(call, blocks());
  if (!is_eager) connect_for(program, deadline);
  announce(call, deadline);
  if (fused_) check_none_leaves(call);
  if (!captured_) watchdog_->add({call, deadline, under_way_});
  // Edges are connected after the call is announced: ranks with different calls would wait for each
  // other here, and the announcements show the difference.
  if (!is_eager) {
    connect_edges(unconnected(program), deadline);
    connected_programs_.insert(&program);
  }
  naming([&] { return describe_numbered(call, group_.members); },
         [&] {
           api_.push_collective(call.collective);
           if (is_eager) {
             fused_->run_eagerly(call, blocks(), reduction, stream());
           } else if (fused_ && fused_->takes(program)) {
             fused_->run(call, program, chunks, reduction, stream());
           } else {
             executor_->run(api_, program, chunks, reduction);
           }
           api_.pop_range();
         });
}

Enqueued Communicator::exchange(cudaStream_t user, const std::vector<PeerMessage>& messages,
                                Timeout timeout,
                                const std::function<void(std::size_t, cudaStream_t)>& after,
                                Timing timing) {
  const Deadline deadline = Deadline::in(timeout);
  return guarded([&] {
    captured_ = captures_.note(user, stream());
    connect_pairs(messages, deadline);
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), user));
    std::vector<Enqueued> ends;  // by stream
    for (const PeerMessage& message : messages) {
      const cudaStream_t stream = connections_.stream_of(message);
      const auto known = [&](const Enqueued& enqueued) { return enqueued.stream == stream; };
      if (std::any_of(ends.begin(), ends.end(), known)) continue;
      ends.push_back({take_event(timing), stream});
      RINGCOMM_CHECK(cudaStreamWaitEvent(stream, began_.get(), 0));
      ends.back().start = record_start(timing, stream);
      if (!captured_) watchdog_->add({message, deadline, ends.back().end});
    }
    naming([&] { return describe(messages.front()); }, [&] { connections_.enqueue(messages); });
    for (std::size_t i = 0; i < messages.size(); ++i) after(i, connections_.stream_of(messages[i]));
    for (const Enqueued& enqueued : ends) enqueued.end->record(enqueued.stream, captured_);
    if (ends.size() == 1) return ends.back();
    // A caller that waits for all messages waits for one stream.
    const Enqueued all{take_event(timing), ends.back().stream, ends.back().start};
    for (const Enqueued& enqueued : ends) {
      if (enqueued.stream != all.stream) enqueued.end->make_wait(all.stream);
    }
    all.end->record(all.stream, captured_);
    if (!captured_) watchdog_->confirm_later(all.end);
    return all;
  });
}

Enqueued Communicator::end_of_all() {
  return guarded([&] {
    const Enqueued enqueued{event_pool_.take(), stream()};
    enqueued.end->record(stream(), captured_);
    if (!captured_) watchdog_->confirm_later(enqueued.end);
    return enqueued;
  });
}

}  // namespace ringcomm::nccl
