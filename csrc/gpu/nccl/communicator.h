// One rank's view of a group on its GPU: NCCL's communicators, the streams, and what is under way.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/device_board.h"
#include "core/group.h"
#include "gpu/nccl/api.h"
#include "gpu/nccl/connections.h"
#include "gpu/nccl/enqueued.h"
#include "gpu/nccl/fused.h"
#include "gpu/nccl/handles.h"
#include "gpu/nccl/watchdog.h"
#include "gpu/streams/device_collectives.h"
#include "gpu/streams/executor.h"

namespace ringcomm::nccl {

using Options = streams::DeviceOptions;

// What a communicator needs of its owner.
struct Host {
  // Any method that enqueues may call it, but not while the caller's stream is being captured.
  Reclaim reclaim = [] {};
  // The watchdog calls it when operations under way have failed, before they end on the device:
  // their results will be wrong, and their callers have returned.
  std::function<void(const Error&)> on_lost_results = [](const Error&) {};
};

// The ranks that a wait on the host needs.
struct Awaited {
  std::vector<int> absent;  // they have not begun
  std::vector<int> busy;    // they have begun, and are not done
};

// Everything is enqueued, and the host waits only for connections. The first collective connects
// this rank with the ranks in its plan, a later collective with the new ranks in its plan, and the
// first message of a pair connects the two. Any thread with the device as its current one may call
// the methods. They throw Error, and all of them do once the group has failed.
class Communicator : private streams::DeviceCollectives {
 public:
  using Collectives::rank;
  using Collectives::Timeout;

  // Does not wait for other ranks. `group` must outlive it.
  Communicator(Group& group, int device, const Options& options, Host host);
  // Aborts what is still under way.
  ~Communicator() override;

  int device() const { return device_; }
  cudaStream_t stream() const { return channels_.front().communication.get(); }

  // Connects this rank with all others with which it is not connected yet. All ranks must call it.
  void connect(Timeout timeout);

  // Calls body(collectives). What it enqueues, through them or by itself on stream(), runs behind
  // what is on `user` now. What is captured in a graph is not timed.
  Enqueued enqueue_behind(cudaStream_t user, const std::function<void(Collectives&)>& body,
                          Timing timing = Timing::kOff);

  // Enqueues one or more messages that belong together: none of them waits for another. after(i,
  // stream) may enqueue more behind message i.
  Enqueued exchange(cudaStream_t user, const std::vector<PeerMessage>& messages, Timeout timeout,
                    const std::function<void(std::size_t i, cudaStream_t stream)>& after,
                    Timing timing = Timing::kOff);

  // The end of all collectives that were enqueued so far.
  Enqueued end_of_all();

  // Why collectives are messages although fused kernels were tried. Empty: they are not.
  const std::string& why_not_fused() const { return why_not_fused_; }

  // The error that the group has failed with. Results that were not confirmed before it cannot be
  // trusted.
  std::shared_ptr<const Failure> failure() const { return failure_; }

  // Waits until all work is done, and frees what NCCL holds. All ranks call it. Returns what could
  // not be freed, and why; this is usually empty.
  std::string shut_down(Timeout timeout);
  // Ends what is under way. Later calls throw `reason`.
  void abort(const std::string& reason);

 private:
  using Executor = streams::Executor<Api>;

  // The resources of a channel.
  struct ChannelResources {
    explicit ChannelResources(Priority priority) : communication(priority), reduction(priority) {}

    std::shared_ptr<void> scratch;
    Stream communication, reduction;
    Event communicated;
    std::vector<Event> reduced;
  };

  void enqueue_program(Call call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, Timeout timeout) override;
  void announce_refused(Call call, Timeout timeout) override;
  void prepare_choice(Timeout timeout) override;
  bool goes_by_kernels() const override;
  void announce(Call& call, const Deadline& deadline);
  void make_executor(const std::vector<ncclComm_t>& comms);
  void connect_all(const Deadline& deadline);
  void connect_for(const Program& program, const Deadline& deadline);
  std::vector<int> unconnected(const Program& program) const;
  void connect_edges(const std::vector<int>& peers, const Deadline& deadline);
  bool may_be_fused() const;
  void connect_memory(const Deadline& deadline);
  void connect_channels(const Deadline& deadline);
  std::vector<int> partners() const;
  Error with_waits(const Error& error) const;
  DeviceBoard::Settings settings() const;
  bool all_joined();
  void connect_pairs(const std::vector<PeerMessage>& messages, const Deadline& deadline);
  void await_peers(const Deadline& deadline, const std::string& doing,
                   const std::function<bool()>& progress, const std::function<Awaited()>& awaited);
  Awaited ranks_not(const std::function<bool(int rank)>& done) const;
  void look_around();

  void check_open() const;
  void check_may_connect(const std::string& what) const;
  template <typename Body>
  auto guarded(Body&& body);
  template <typename Describe, typename Body>
  void naming(Describe&& doing, Body&& body);
  // Records the failure, reports it to the other ranks and ends what is under way. `under_way`:
  // results of calls that have returned are lost.
  void fail(const Error& error, bool under_way = false);
  std::shared_ptr<EventHandle> take_event(Timing timing);
  std::shared_ptr<EventHandle> record_start(Timing timing, cudaStream_t stream);
  void end();
  void leave();
  bool close_together(const Deadline& deadline);
  void check_none_leaves(const Call& call);
  void record_stop();
  void publish_stopped();
  bool is_read_by(int peer, std::uint64_t sequence);
  bool is_read();
  void await_readers();
  void free_memory();

  Group& group_;
  DeviceBoard& board_;
  const int device_;
  const Options options_;
  const Host host_;
  // Before all that holds memory.
  struct Counted {
    std::shared_ptr<HeldMemory> held;
    ~Counted() { held->close(); }
  };
  const Counted counted_{
      std::make_shared<HeldMemory>([this](std::size_t nbytes) { board_.publish_held(nbytes); })};
  const Allocator allocator_;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  // Held while this rank is inside NCCL, and while its communicators are freed. It guards the
  // members below.
  std::mutex mutex_;
  Api api_;
  Event began_, stopped_;
  EventPool event_pool_;
  EventPool timed_pool_{Timing::kOn};
  Captures captures_;
  std::vector<ChannelResources> channels_;
  Connections connections_;
  std::optional<Executor> executor_;  // once channels are connected
  std::shared_ptr<FusedExecutor> fused_;
  std::atomic<FusedExecutor*> fused_for_all_{nullptr};  // the same, for any thread
  std::unique_ptr<FusedMemory> unused_memory_;          // set if not all ranks reach all memory
  std::string why_not_fused_;
  bool connected_ = false;
  std::vector<bool> has_edge_;  // by rank: whether its edge of the channels is connected
  std::set<const Program*> connected_programs_;  // they use only edges that are connected
  std::uint64_t sequence_ = 0;
  bool captured_ = false;                   // the call that is being enqueued
  std::shared_ptr<EventHandle> under_way_;  // the end of that call
  bool closed_ = false;                     // without an error
  bool ended_ = true;  // false: work that could not be interrupted still runs on the device
  std::once_flag awaited_readers_;

  std::optional<Watchdog> watchdog_;
};

// Runs body(). An error of a library names what this rank was doing.
template <typename Describe, typename Body>
void Communicator::naming(Describe&& doing, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kLibrary) throw;
    throw Error(ErrorKind::kLibrary, group_.members.name(rank()) + " in " + doing() +
                                         " on device " + std::to_string(device_) + ": " +
                                         error.what());
  }
}

}  // namespace ringcomm::nccl
