// A communicator from its making to its end; what happens in between is in enqueue.cpp.
#include "nccl/communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "nccl/errors.h"
#include "streams/choice.h"

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

Board::Settings Communicator::settings() const {
  const streams::Layout& layout = options_.layout;
  return {static_cast<std::uint64_t>(layout.num_channels), layout.slice_nbytes,
          static_cast<std::uint64_t>(options_.max_ctas), options_.graphs,
          static_cast<std::uint64_t>(options_.executor)};
}

// Ranks with other settings than this one would wait for each other in vain.
bool Communicator::all_joined() {
  constexpr std::array kNames = {"RINGCOMM_CHANNELS", "RINGCOMM_SLICE_BYTES", "RINGCOMM_MAX_CTAS",
                                 "RINGCOMM_GRAPHS", "RINGCOMM_EXECUTOR"};
  static_assert(kNames.size() == std::tuple_size_v<Board::Settings>);
  if (!board_.not_joined().empty()) return false;
  const Board::Settings own = settings();
  for (int r = 0; r < world_size(); ++r) {
    const Board::Settings theirs = board_.settings_of(r);
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (theirs[i] == own[i]) continue;
      throw Error(ErrorKind::kMismatch,
                  std::string(kNames[i]) + " must be the same on all ranks: it is " +
                      std::to_string(own[i]) + " on " + group_.members.name(rank()) + " and " +
                      std::to_string(theirs[i]) + " on " + group_.members.name(r));
    }
  }
  return true;
}

// NCCL may allocate memory when ranks connect, and waits for them on the host.
void Communicator::check_may_connect(const std::string& what) const {
  if (!captured_) return;
  throw Error(ErrorKind::kInvalidArgument,
              what +
                  " cannot be captured in a CUDA graph, as it connects ranks; make one before "
                  "the capture begins");
}

void Communicator::connect_all(const Deadline& deadline) {
  if (connected_) return;
  check_may_connect("the first collective of a group");
  board_.join(settings());
  if (may_be_fused()) connect_memory(deadline);
  if (!fused_) connect_channels(deadline);
  connected_ = true;
}

// Memory is for eager calls at least.
bool Communicator::may_be_fused() const {
  return streams::by_kernel(options_.executor, options_.auto_is_fused).eager;
}

// What a kernel does not take goes as messages.
void Communicator::connect_for(const Program& program, const Deadline& deadline) {
  connect_all(deadline);
  if (fused_ && fused_->takes(program)) return;
  if (!executor_) {
    check_may_connect("the first collective of a group that goes as messages");
    connect_channels(deadline);
  }
  if (!unconnected(program).empty()) {
    check_may_connect("a collective that goes to other ranks than those before it");
  }
}

// The peers that it exchanges something with, and that are not connected. Peers are so to each
// other: all ranks carry out the same programs.
std::vector<int> Communicator::unconnected(const Program& program) const {
  std::vector<int> peers;
  if (has_edge_.empty() || connected_programs_.contains(&program)) return peers;
  if (fused_ && fused_->takes(program)) return peers;
  for (const Action& action : program.actions) {
    for (const Source& source : action.from) peers.push_back(source.peer);
    for (const Reader& reader : action.to) peers.push_back(reader.peer);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::erase_if(peers, [this](int peer) { return has_edge_[peer]; });
  return peers;
}

// Of all channels. Communicators exist by then, so that they have to be left where a thread cannot
// be brought back from NCCL.
void Communicator::connect_edges(const std::vector<int>& peers, const Deadline& deadline) {
  if (peers.empty()) return;
  Comms& channels = *connections_.channels();
  const auto memory = allocate(Edges::memory_nbytes(channels.get().size(), peers.size()), reclaim_);
  channels.hold(memory);
  Edges edges(channels.get(), peers, device_, memory);
  try {
    await_peers(
        deadline, "connecting its device with those of " + group_.members.names(peers),
        [&] { return edges.connected(); }, [&] { return Awaited{.absent = {}, .busy = peers}; });
  } catch (...) {
    if (!edges.stop()) {
      ended_ = false;
      connections_.leave();
    }
    throw;
  }
  for (const int peer : peers) has_edge_[peer] = true;
}

void Communicator::connect_memory(const Deadline& deadline) {
  if (world_size() == 1) {
    why_not_fused_ = "there is but one rank";
  } else if (world_size() > fused::kMaxRanks) {
    why_not_fused_ = "there are more than " + std::to_string(fused::kMaxRanks) + " ranks";
  } else if (group_.spans_hosts()) {
    why_not_fused_ = "the ranks are on several hosts";
  }
  if (!why_not_fused_.empty()) return;
  const int ctas = std::clamp(options_.max_ctas, 1, fused::kMaxBlocks);
  const auto by_kernel = streams::by_kernel(options_.executor, options_.auto_is_fused);
  const fused::Layout layout{
      .world_size = world_size(),
      .num_lanes = fused::kLanesPerBlock * ctas,
      .outbox_nbytes = by_kernel.lanes ? options_.outbox_nbytes : 0,
      .eager_lanes = ctas,
      .eager_nbytes =
          options_.eager_nbytes / (world_size() - 1) / fused::kEagerUnit * fused::kEagerUnit,
      .hop_nbytes = options_.two_hop_nbytes / world_size() / fused::kEagerUnit * fused::kEagerUnit};
  const auto paths = options_.executor == streams::DeviceExecutor::kFused
                         ? FusedMemory::Paths::kAll
                         : FusedMemory::Paths::kNvlink;
  auto memory = std::make_unique<FusedMemory>(group_, device_, layout, paths, reclaim_);
  await_peers(
      deadline, "sharing its device's memory with all ranks",
      [&] { return all_joined() && memory->progress(); },
      [this] { return who_is_not([this](int r) { return board_.has_found(r); }); });
  why_not_fused_ = memory->why_not();
  if (!why_not_fused_.empty()) {
    unused_memory_ = std::move(memory);
    return;
  }
  fused_ = std::make_shared<FusedExecutor>(rank(), std::move(memory), reclaim_);
  fused_for_all_.store(fused_.get(), std::memory_order_release);
}

void Communicator::connect_channels(const Deadline& deadline) {
  if (world_size() == 1) return make_executor({});
  if (rank() == 0 && !board_.greeting_to_all(0)) board_.greet_all(Meeting::new_id());
  const int num_channels = options_.layout.num_channels;
  const int ctas = std::max(1, options_.max_ctas / num_channels);
  Meeting meeting(
      {rank(), world_size(), device_, ctas, {}}, num_channels,
      [this] { return board_.greeting_to_all(0); }, reclaim_);
  const std::string doing = "connecting its device with those of all ranks";
  await_peers(
      deadline, doing, [&] { return all_joined() && meeting.progress(); },
      [this] { return who_is_not([this](int r) { return board_.is_connected(r); }); });
  board_.tell_connected();
  std::unique_ptr<Comms> channels = meeting.take();
  make_executor(channels->get());
  connections_.set_channels(std::move(channels));
  has_edge_.assign(world_size(), false);
  has_edge_[rank()] = true;
}

void Communicator::connect_pairs(const std::vector<PeerMessage>& messages,
                                 const Deadline& deadline) {
  const auto ready = [&](const PeerMessage& message) {
    return connections_.messages().ready(message.peer);
  };
  if (std::all_of(messages.begin(), messages.end(), ready)) return;
  check_may_connect("the first message between two ranks");
  std::vector<int> peers;
  for (const PeerMessage& message : messages) peers.push_back(message.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  const std::string doing =
      describe(messages.front()) + ", connecting to " + group_.members.names(peers);
  await_peers(
      deadline, doing, [&] { return std::all_of(messages.begin(), messages.end(), ready); },
      [&] {
        Awaited awaited;
        for (const int peer : peers) {
          const bool has_come = connections_.messages().has_come(peer);
          if (!has_come) awaited.absent.push_back(peer);
          if (has_come && !connections_.messages().ready(peer)) awaited.busy.push_back(peer);
        }
        return awaited;
      });
}

// Of those that have joined, the ones that are not done.
Awaited Communicator::who_is_not(const std::function<bool(int rank)>& done) const {
  Awaited awaited{.absent = board_.not_joined(), .busy = {}};
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.joined(r) && !done(r)) awaited.busy.push_back(r);
  }
  return awaited;
}

// Goes on answering others meanwhile, who may be what the awaited ranks wait for.
void Communicator::await_peers(const Deadline& deadline, const std::string& doing,
                               const std::function<bool()>& progress,
                               const std::function<Awaited()>& awaited) {
  const auto answering = [&] {
    failure_->check();
    connections_.answer();
    return progress();
  };
  telling([&] { return doing; }, [&] { await(group_, deadline, doing, answering, awaited); });
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
  // NCCL waits for graphs to let go of a communicator, but not of one that was interrupted.
  const bool is_free = captures_.alive() == 0 && !(interrupts && !replays_.empty());
  replays_.clear();
  if (!ended_ || !is_free) return leave();
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
  board_.close(captures_.alive() > 0 ? Board::Closing::kHeld : Board::Closing::kFree);
  const Clock::time_point begin = Clock::now();
  const auto all_closed = [this] {
    std::lock_guard lock(mutex_);
    connections_.answer();  // what a peer has begun ends before its communicators do
    return connections_.all_met() && board_.least_closed(partners()) != Board::Closing::kNot;
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
    } else if (clean && board_.most_closed(partners()) == Board::Closing::kFree) {
      replays_.clear();
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
