// How a communicator connects its ranks: it opens their memory for kernels, and makes NCCL's
// communicators and edges for messages. It does each when it is first needed.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/status.h"
#include "gpu/nccl/communicator.h"
#include "gpu/nccl/handles.h"
#include "gpu/streams/device_collectives.h"

namespace ringcomm::nccl {
namespace {

// What follows "Timed out after 3 s (its timeout is 3 s)".
std::string describe(const Awaited& awaited, const Members& members) {
  const auto those = [&members](const std::vector<int>& ranks) {
    return ", waiting for " + members.names(ranks) +
           (ranks.size() == 1 ? ", which has" : ", which have");
  };
  if (!awaited.absent.empty()) return those(awaited.absent) + " not come";
  if (!awaited.busy.empty()) return those(awaited.busy) + " come, and not connected";
  return ", though all ranks have come: NCCL does not connect them";
}

struct Gone {
  int peer;
  std::string how;
};

std::optional<Gone> find_gone(Group& group, const std::vector<int>& peers) {
  for (const int peer : peers) {
    std::string how;
    if (peer != group.rank && group.gone(peer, &how)) return Gone{peer, how};
  }
  return std::nullopt;
}

// Waits on the host for what NCCL does in the background, until progress() is true. Throws Error
// when the time is up, when the group is broken, or when a rank that awaited() names is gone.
// `doing`: "connecting ...".
void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<Awaited()>& awaited) {
  const std::string who = group.members.name(group.rank) + " in " + doing;
  std::optional<Gone> gone;
  for (Poll poll(kPollEvery); !progress(); poll.sleep()) {
    if (!gone && !poll.looks_around()) continue;
    check_interrupt();
    if (group.broken()) group.check(doing);
    const Awaited missing = awaited();
    std::vector<int> peers = missing.absent;
    peers.insert(peers.end(), missing.busy.begin(), missing.busy.end());
    // A peer may do its part and leave before it is looked at. So it counts as gone only if this
    // rank still awaits it afterwards.
    if (gone && std::ranges::find(peers, gone->peer) != peers.end()) {
      throw group.fail(
          ErrorKind::kPeerDied,
          after(who, deadline) + ": " + will_not_answer(group.members.name(gone->peer), gone->how));
    }
    gone = find_gone(group, peers);
    if (gone || !deadline.has_passed()) continue;
    throw group.fail(ErrorKind::kTimeout,
                     timed_out(who, deadline) + describe(missing, group.members));
  }
}

}  // namespace

DeviceBoard::Settings Communicator::settings() const {
  const streams::Layout& layout = options_.layout;
  return {static_cast<std::uint64_t>(layout.num_channels), layout.slice_nbytes,
          static_cast<std::uint64_t>(options_.max_ctas),
          static_cast<std::uint64_t>(options_.executor)};
}

// If settings differ, ranks would wait for each other until the timeout.
bool Communicator::all_joined() {
  constexpr std::array kNames = {"channels", "slice_nbytes", "max_ctas", "RINGCOMM_EXECUTOR"};
  static_assert(kNames.size() == std::tuple_size_v<DeviceBoard::Settings>);
  if (!board_.not_joined().empty()) return false;
  const DeviceBoard::Settings own = settings();
  for (int r = 0; r < world_size(); ++r) {
    const DeviceBoard::Settings theirs = board_.settings_of(r);
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

// When ranks connect, NCCL may allocate memory and waits for peers on the host. A capture allows
// neither.
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

// Eager calls need the memory; whatever uses lanes uses eager calls, too.
bool Communicator::may_be_fused() const {
  return streams::by_kernel(options_.executor, options_.auto_is_fused).eager;
}

// Programs that a kernel cannot carry out are messages, which need connections.
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

// The peers that the program exchanges something with and that are not connected. The peers find
// the same, because all ranks carry out the same programs.
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

// Connects the edges of all channels. The communicators exist by then. So they must be left if a
// thread does not return from NCCL.
void Communicator::connect_edges(const std::vector<int>& peers, const Deadline& deadline) {
  if (peers.empty()) return;
  Comms& channels = *connections_.channels();
  const auto memory =
      allocate(Edges::memory_nbytes(channels.get().size(), peers.size()), allocator_);
  channels.hold(memory);
  Edges edges(channels.get(), peers, device_, memory);
  try {
    await_peers(
        deadline, "connecting its device with those of " + group_.members.names(peers),
        [&] { return edges.connected(); }, [&] { return Awaited{.absent = {}, .busy = peers}; });
  } catch (...) {
    if (!edges.stop()) {
      ended_ = false;
      connections_.end(&Comms::leave);
    }
    throw;
  }
  for (const int peer : peers) has_edge_[peer] = true;
}

void Communicator::connect_memory(const Deadline& deadline) {
  why_not_fused_ = why_no_kernels(world_size(), group_.spans_hosts(), fused::kMaxRanks);
  if (!why_not_fused_.empty()) return;
  const int ctas = std::clamp(options_.max_ctas, 1, fused::kMaxBlocks);
  const auto by_kernel = streams::by_kernel(options_.executor, options_.auto_is_fused);
  const fused::Layout layout{
      .world_size = world_size(),
      .num_lanes = fused::kLanesPerBlock * ctas,
      .outbox_nbytes = by_kernel.lanes ? options_.outbox_nbytes : 0,
      .eager_lanes = ctas,
      .eager_nbytes = fused::eager_nbytes_for_each(options_.eager_nbytes, world_size()),
      .hop_nbytes = options_.two_hop_nbytes / world_size() / fused::kEagerUnit * fused::kEagerUnit};
  const auto paths = options_.executor == streams::DeviceExecutor::kFused
                         ? FusedMemory::Paths::kAll
                         : FusedMemory::Paths::kNvlink;
  auto memory = std::make_unique<FusedMemory>(group_, device_, layout, paths, allocator_);
  await_peers(
      deadline, "sharing its device's memory with all ranks",
      [&] { return all_joined() && memory->progress(); },
      [this] { return ranks_not([this](int r) { return board_.has_found(r); }); });
  why_not_fused_ = memory->why_not();
  if (!why_not_fused_.empty()) {
    unused_memory_ = std::move(memory);
    return;
  }
  fused_ = std::make_shared<FusedExecutor>(rank(), std::move(memory), allocator_);
  fused_for_all_.store(fused_.get(), std::memory_order_release);
}

void Communicator::connect_channels(const Deadline& deadline) {
  if (world_size() == 1) return make_executor({});
  if (rank() == 0 && !board_.unique_id_to_all(0))
    board_.send_unique_id_to_all(CommunicatorSetup::new_id());
  const int num_channels = options_.layout.num_channels;
  const int ctas = std::max(1, options_.max_ctas / num_channels);
  CommunicatorSetup setup(
      {rank(), world_size(), device_, ctas, {}}, num_channels,
      [this] { return board_.unique_id_to_all(0); }, allocator_);
  const std::string doing = "connecting its device with those of all ranks";
  await_peers(
      deadline, doing, [&] { return all_joined() && setup.progress(); },
      [this] { return ranks_not([this](int r) { return board_.is_connected(r); }); });
  board_.publish_connected();
  std::unique_ptr<Comms> channels = setup.take();
  make_executor(channels->get());
  connections_.set_channels(std::move(channels));
  has_edge_.assign(world_size(), false);
  has_edge_[rank()] = true;
}

void Communicator::connect_pairs(const std::vector<PeerMessage>& messages,
                                 const Deadline& deadline) {
  const auto ready = [&](const PeerMessage& message) { return connections_.ready(message.peer); };
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
          const bool has_come = connections_.has_come(peer);
          if (!has_come) awaited.absent.push_back(peer);
          if (has_come && !connections_.ready(peer)) awaited.busy.push_back(peer);
        }
        return awaited;
      });
}

// The ranks for which done() is false: those that have not joined, and those that have.
Awaited Communicator::ranks_not(const std::function<bool(int rank)>& done) const {
  Awaited awaited{.absent = board_.not_joined(), .busy = {}};
  for (int r = 0; r < group_.world_size; ++r) {
    if (board_.joined(r) && !done(r)) awaited.busy.push_back(r);
  }
  return awaited;
}

// Meanwhile this rank goes on answering other ranks, because the awaited ranks may wait for those.
void Communicator::await_peers(const Deadline& deadline, const std::string& doing,
                               const std::function<bool()>& progress,
                               const std::function<Awaited()>& awaited) {
  const auto answering = [&] {
    failure_->check();
    connections_.answer();
    return progress();
  };
  naming([&] { return doing; }, [&] { await(group_, deadline, doing, answering, awaited); });
}

}  // namespace ringcomm::nccl
