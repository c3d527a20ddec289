// The torch.distributed backend "ring".
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <vector>

#include "core/call_times.h"
#include "core/process.h"
#include "core/queue.h"
#include "shm/communicator.h"
#include "shm/shrink.h"
#include "torch/device.h"
#include "torch/finite.h"
#include "torch/observer.h"
#include "torch/operation.h"
#include "torch/tensors.h"
#include "torch/work.h"

namespace ringcomm {

enum class InPlace;  // torch/arguments.h

// Every collective checks what one rank can know of its arguments and throws before anything is
// sent: ValueError, or NotImplementedError for a device without an executor. What only two ranks
// together can see, time-outs and lost peers end the Work with a DistBackendError.
//
// Operations run in the order they were called. A synchronous one runs on the calling thread when
// nothing is ahead of it; the others run on the queue's threads, sends and receives apart from
// them.
class RingBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("ring", timeout) {}
    // From torch 2.14 on this overrides Backend::Options::clone.
    virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const {
      return c10::make_intrusive<Options>(*this);
    }

    Selection selection;
    bool check_finite = false;   // see torch/finite.h
    CallTimes times = {};        // as measured on this machine
    std::string links = "auto";  // engine between hosts, see torch/links.h
    std::chrono::milliseconds heartbeat_timeout =
        kHeartbeatTimeout;          // that a host may keep, see setup/group_config.h
    std::string host;               // the user's name of this rank's host; empty: it is found out
    streams::DeviceOptions device;  // but for the selection
    // Called by rank 0 of each group, once it is made, with the file of its memory.
    std::function<void(int descriptor)> made = {};
    // A group that was made before, and knows which ranks have ended since.
    std::weak_ptr<Communicator> relative;
  };

  RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
              c10::intrusive_ptr<Options> options);
  // A backend whose communicator is there already.
  RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
              std::shared_ptr<Communicator> communicator, c10::intrusive_ptr<Options> options);
  ~RingBackend() override;

  const std::string getBackendName() const override { return "ring"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return options_; }
  Reproducible reproducible() const { return options_->selection.reproducible; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  // From torch 2.14 on this overrides Backend::gather_into_tensor.
  virtual WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                     const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Between the two, every operation is asynchronous; endCoalescing returns one Work for all.
  // supportsCoalescing is true only if there are devices, whose messages must begin together: it
  // makes torch coalesce each batch of messages, and keep a group that raised meanwhile from ever
  // running a collective again.
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Splitting makes a group from the parent's store, and takes its members alone. torch asks the
  // other ranks to take part, too, through a method that Backend does not have, and that
  // bindings.cpp gives this one. A DeviceMesh splits if a group is bound to a device
  // (device_id=).
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // Going on after a death: backend_membership.cpp.
  //
  // A new group of the ranks that are not excluded, which call it and no others. All dead ranks
  // must be among the excluded, since torch counts the new ranks by them.
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) override;

  struct Shrunk {
    c10::intrusive_ptr<RingBackend> backend;
    shm::Survivors survivors;
  };
  // As shrink; with `exact` false, the dead are found, too. This group ends.
  Shrunk shrink_to_living(const std::vector<int64_t>& excluded, bool exact,
                          std::optional<std::chrono::milliseconds> timeout,
                          const c10::intrusive_ptr<c10d::Backend::Options>& opts);

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // With Options::enable_reconfigure there are no members before the first reconfigure.
  bool supportsReconfigure() const override { return options_->enable_reconfigure; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  // Returns when all members have called it.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

  // What broke the group; SUCCESS if it works, or was closed or aborted.
  c10d::ErrorType getError() override;

  // Connects the device with all other ranks' now, which the first collective there does otherwise.
  void eagerConnectSingleDevice(at::Device device) override;

  void abort() override;
  void shutdown() override;

  // What torch asks of a backend beside communication: backend_services.cpp.
  //
  // From torch 2.15 on this overrides Backend::isInitialized.
  virtual bool isInitialized() { return communicator_ != nullptr; }
  // From torch 2.14 on, at the latest, this overrides Backend::addEphemeralTimeout. Throws
  // ValueError for a negative time.
  virtual void addEphemeralTimeout(const std::chrono::milliseconds& timeout);
  // Estimates of collectives on the CPU. These override those of Backend, the
  // first one in torch 2.11 already, the others from 2.15 on.
  virtual bool supportsTimeEstimation() const;
  virtual void startTimeEstimate();
  virtual float endTimeEstimate();  // microseconds
  // Works that are made from now on know how long they took. Their calls are not the fastest.
  void enableCollectivesTiming() override { observer_->time_calls(); }
  // For each operation that succeeds, until the backend ends. There can be one such hook.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Returns when all works are complete, and their hooks have been called.
  void waitForPendingWorks() override;
  // Tensors on the CPU that the ranks of this host reach where they are: shared_memory.h.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  // In bytes. From torch 2.13 on, at the latest, this overrides Backend::getMemoryStats.
  virtual std::unordered_map<std::string, std::uint64_t> getMemoryStats();
  // All ranks call suspend, which gives back the shared memory that holds no state between calls.
  // Until resume, which takes no other rank, calls raise. From torch 2.14 on, at the latest, these
  // override those of Backend.
  virtual void suspend();
  virtual void resume();
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;

  // From torch 2.14 on, and 2.15, these override those of Backend.
  virtual bool supportsAbortHooks() const { return true; }
  virtual void registerAbortHook(int64_t id, std::function<void()> hook) {
    observer_->hooks.abort.add(id, std::move(hook));
  }
  virtual void unregisterAbortHook(int64_t id) { observer_->hooks.abort.remove(id); }
#ifdef RINGCOMM_WITH_COMPLETION_HOOKS
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    observer_->hooks.completion.add(id, std::move(hook));
  }
  void unregisterCompletionHook(int64_t id) override { observer_->hooks.completion.remove(id); }
#endif

  // Announces to the other ranks that this rank does not make so many collectives, and why. Where
  // that is impossible the group is broken.
  void announce_refusal(const std::string& reason, std::size_t num_collectives);
  // Announces to the peer that this rank's arguments for a message were refused, if there can be
  // one that waits for it: not with a tag or a peer that no message has.
  void refuse_message(shm::Message::Kind kind, int peer, int tag, const std::string& reason);

  // Closes the group as the process ends. The queue ends when all operations have.
  std::weak_ptr<Queue> leave();

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  // The rank in this group of the default group's rank, if it is in it.
  std::optional<int> find(std::uint64_t global_rank) const {
    if (!communicator_) return std::nullopt;
    return communicator_->group().members.find(global_rank, size_);
  }

  // On the calling thread, without a Work. False if that cannot be (operations are queued, a tensor
  // is not flat, or would have to be copied), and then nothing has been done.
  bool try_all_reduce_sync(const at::Tensor& tensor, const c10d::ReduceOp& op);
  bool try_reduce_scatter_sync(const at::Tensor& output, const at::Tensor& input,
                               const c10d::ReduceOp& op);
  bool try_all_gather_sync(const at::Tensor& output, const at::Tensor& input);
  bool try_broadcast_sync(const at::Tensor& tensor, int root);
  bool try_reduce_sync(const at::Tensor& tensor, int root, const c10d::ReduceOp& op);
  // Equal parts.
  bool try_all_to_all_sync(const at::Tensor& output, const at::Tensor& input);
  bool try_barrier_sync();
  // Sends or receives, to the end.
  bool try_message_sync(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag);
  // Null, with nothing done, where torch has to change the tensor first.
  WorkPtr begin_message(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag);

 private:
  struct Submission {
    Operation operation;
    Operation::Body body;
    DeviceGroup* device;  // that its memory lies on; null: the host carries it out
  };
  // Operations between startCoalescing and endCoalescing, or those of one coalesced call, which
  // share a work. On a device, messages begin together at the end.
  struct Coalescing {
    std::vector<c10::intrusive_ptr<RingWork>> parts = {};  // on the host
    DeviceGroup* device = nullptr;
    Tensors outputs = {};  // on the device, as all that follows
    std::vector<PeerMessage> messages = {};
    std::vector<Writable> data = {};  // of the messages
    Report report = {};               // likewise

    void add(DeviceGroup& group, const Tensors& more) {
      device = &group;
      outputs.insert(outputs.end(), more.begin(), more.end());
    }
  };

  // What happens to a collective, once its arguments are checked:
  //
  //   run_sync               carries it out on the calling thread, without a Work, or returns false
  //                          with nothing done
  //   carry_out              brings its tensors into shape
  //   submit                 chooses the host or a device. A part of a coalesced call
  //                          is held until all parts have been checked
  //   begin                  gives it its number
  //   begin_on_host          runs the body with communicator_: at once if the operation is
  //                          synchronous and nothing is ahead of it, or else when the queue does.
  //                          A small asynchronous one begins at once, and the queue goes on with it
  //                          if it has to wait
  //   DeviceGroup::enqueue   runs the body with the device's communicator, which enqueues it
  //
  // The body calls the collectives, which become calls that the communicator carries out.
  template <typename Call>
  bool run_sync(const Call& call);
  template <typename Body>
  bool at_once(c10d::OpType type, const at::Tensor* input, const at::Tensor* output,
               bool has_result, Body body);
  template <typename Call, typename CallOptions>
  WorkPtr carry_out(Call call, const CallOptions& opts);
  template <typename CallOptions, typename Run>
  WorkPtr carry_out_lists(c10d::OpType type, const char* title, const Tensors& inputs,
                          const Tensors& outputs, InPlace in_place, const CallOptions& opts,
                          Run run);
  WorkPtr submit(Operation operation, Operation::Body body);
  WorkPtr begin(Submission submission, Coalescing* coalescing);
  WorkPtr begin_numbered(Submission submission, Coalescing* coalescing);
  WorkPtr begin_on_host(Submission submission, Coalescing* coalescing);

  WorkPtr send_or_recv(shm::Message::Kind kind, Tensors& tensors, int peer, int tag,
                       c10d::OpType type, const char* title);
  bool run_message_sync(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag);
  WorkPtr send_or_recv_on_host(shm::Message::Kind kind, Operation operation, Writable data,
                               int peer, int tag);
  WorkPtr send_or_recv_on_device(bool is_send, const Operation& operation, Writable data, int peer);

  // In announced.h.
  template <typename Body>
  auto announced(const char* what, const at::Tensor& tensor, std::size_t num_calls, Body body);
  template <typename Body>
  auto announced_message(shm::Message::Kind kind, const at::Tensor& tensor, int peer, int tag,
                         Body body);
  [[noreturn]] void announce_and_rethrow(const char* what, std::size_t num_pending,
                                         std::size_t num_calls);
  [[noreturn]] void announce_message_and_rethrow(shm::Message::Kind kind, int peer, int tag,
                                                 std::size_t num_pending);
  std::string where(const char* what) const;

  // A call that is coalesced of those that submit_all makes. They begin when all have been checked,
  // and share an event for the profiler.
  WorkPtr coalesce(c10d::OpType type, const char* title, const Tensors& inputs,
                   const Tensors& outputs, const std::function<void()>& submit_all);
  // The one work of all that has begun.
  WorkPtr join(Coalescing& coalesced, Operation operation);
  WorkPtr join_parts(Coalescing& coalesced, Operation operation);

  // This rank's part on the device, which the first call makes.
  DeviceGroup& device_group(at::Device device);

  // Whether a call of torch's is to be carried out by the method try_..._sync, if that can do it.
  template <typename Options>
  bool runs_sync(const Options& opts) const {
    return !opts.asyncOp && opts.timeout <= std::chrono::milliseconds(0) && !held_ &&
           !observer_->times_calls() && !Observer::is_profiled();
  }
  // Whether a call can be carried out without a Work at all.
  bool needs_no_work() const { return !coalescing_ && !estimate_ && !extension_->is_active(); }
  std::string why_no_estimate() const;
  // Adds the operation to the estimate in place of carrying it out.
  WorkPtr add_to_estimate(Operation operation);
  [[noreturn]] void refuse_in_estimate(const std::string& what) const;
  // The work of a call that was carried out at once. Completion hooks have been called when this
  // returns.
  WorkPtr done(c10d::OpType type, const at::Tensor& output) const {
    const std::uint64_t key = Observer::next_completion_key();
    auto work =
        c10::make_intrusive<DoneWork>(rank_, type, sequence_, output, options_->timeout, key);
    observer_->call_completion_hooks(key, std::nullopt);
    return work;
  }

  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const {
    const bool is_default = timeout <= std::chrono::milliseconds(0);
    return bounded(is_default ? options_->timeout : timeout) + bounded(extension_->now());
  }
  // Throws ValueError if what this rank adds to its next collective is to be finite and is not.
  void check_values(std::span<const at::Tensor> tensors, c10d::OpType type) const {
    if (options_->check_finite) check_finite(tensors, public_name_of(type), sequence_ + 1);
  }
  // Likewise for what it sends.
  void check_values(const at::Tensor& tensor) const {
    if (options_->check_finite) check_finite({&tensor, 1}, "send", 0);
  }
  void close(const std::string& reason, bool abort);
  void abandon();
  // Before any use. Throws DistBackendError in a child that was forked from the process that made
  // the group; gives the group the name that torch has given it since.
  void check_usable();
  // Begins the flight record of the present members.
  void begin_record();
  void note_completed_on_device();

  const ForkGuard fork_guard_;
  std::once_flag named_;

  // Null if the members are not known yet: see reconfigure.
  static std::shared_ptr<Communicator> first_communicator(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
      const Options& options);
  // This group's options for a group of some of its ranks.
  c10::intrusive_ptr<Options> options_of(
      const std::vector<int>& ranks, const c10::intrusive_ptr<c10d::Backend::Options>& opts) const;
  // Ascending; throws ValueError.
  std::vector<int> members_to_exclude(const std::vector<int64_t>& excluded) const;
  c10::intrusive_ptr<RingBackend> successor(const shm::Survivors& survivors,
                                            const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                            std::chrono::milliseconds timeout,
                                            const std::function<void()>& watch) const;
  // Throws if there are no members: before the first reconfigure, and after one that failed.
  void check_has_members() const;

  const c10::intrusive_ptr<Options> options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> met_in_;  // the present members, and no others
  // Before the communicator: operations that are queued when the backend goes still need it.
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Queue> queue_;
  std::atomic<std::uint64_t> sequence_ = 0;  // callbacks submit operations too
  std::optional<Coalescing> coalescing_;
  std::atomic<bool> suspended_ = false;
  std::optional<double> estimate_;  // seconds; ended by a call that is refused, as by its end
  std::optional<std::vector<Submission>> held_;  // of the coalesced call being checked

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  static std::string new_handle();  // names one backend of this process
  const std::string handle_;
  std::set<int64_t> reconfigured_;  // uuids
#endif

  std::mutex device_mutex_;
  std::unique_ptr<DeviceGroup> device_group_;
  const std::shared_ptr<Observer> observer_ = std::make_shared<Observer>();
  const std::shared_ptr<TimeoutExtension> extension_ = std::make_shared<TimeoutExtension>();
};

// For atexit, without the GIL. Closes all groups, so that operations under way end, and waits a
// little until no thread is in a call and no callback runs: after that they would find no Python
// any more.
void close_all();

}  // namespace ringcomm
