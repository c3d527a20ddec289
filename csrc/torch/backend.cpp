// The backend's life: what it makes and ends, the operations that are submitted to it, and the
// refusals that it announces.
#include "torch/backend.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "core/poll.h"
#include "core/thread.h"
#include "torch/announced.h"
#include "torch/arguments.h"
#include "torch/python.h"

namespace ringcomm {
namespace {

// How long close_all() waits for calls to end.
constexpr std::chrono::milliseconds kPatience{5000};
// A thread that has left a call still has to take the GIL.
constexpr std::chrono::milliseconds kToTakeTheGil{20};

// All that live, which close_all() closes. Never destroyed: threads may outlive the statics of the
// library.
struct Backends {
  std::mutex mutex;
  std::vector<RingBackend*> all;
};
Backends& backends() {
  static auto& backends = *new Backends;
  return backends;
}

// A weak reference, because the group may end before a thread that waits for records has seen that
// they are written.
std::function<FlightRecorder::DumpsWritten()> dump_requests_of(
    const std::weak_ptr<Communicator>& communicator) {
  return [communicator]() -> FlightRecorder::DumpsWritten {
    const std::shared_ptr<Communicator> asked = communicator.lock();
    if (!asked) return nullptr;
    const std::uint32_t request = asked->group().request_dumps();
    return [asked, request] { return asked->group().has_dumps(request); };
  };
}

// A collective on the host, for the threads that carry it out, in turn.
class HostCall {
 public:
  HostCall(c10::intrusive_ptr<CollectiveWork> work, Operation::Body body,
           std::shared_ptr<Communicator> host, int num_calls, std::chrono::milliseconds timeout)
      : work_(std::move(work)),
        body_(std::move(body)),
        host_(std::move(host)),
        num_calls_(num_calls),
        timeout_(timeout) {}

  void run() {
    note(error_of([&] { host_->settled(num_calls_, timeout_, [this] { call(); }); }));
  }
  // False: the call has to wait for other ranks, and run() is to go on with it.
  bool run_soon() {
    bool is_over = true;
    const auto error =
        error_of([&] { is_over = host_->settled_soon(timeout_, [this] { call(); }); });
    if (is_over) note(error);
    return is_over;
  }
  void complete() { work_->complete(error_); }

 private:
  void call() {
    if (!std::exchange(is_begun_, true)) work_->start();
    body_(*host_);
  }
  void note(std::exception_ptr error) {
    error_ = std::move(error);
    if (!error_) work_->note_result();
  }

  const c10::intrusive_ptr<CollectiveWork> work_;
  const Operation::Body body_;
  const std::shared_ptr<Communicator> host_;
  const int num_calls_;
  const std::chrono::milliseconds timeout_;
  bool is_begun_ = false;
  std::exception_ptr error_;
};

}  // namespace

RingBackend::RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                         c10::intrusive_ptr<Options> options)
    : RingBackend(store, rank, world_size, first_communicator(store, rank, world_size, *options),
                  options) {}

RingBackend::RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                         std::shared_ptr<Communicator> communicator,
                         c10::intrusive_ptr<Options> options)
    : Backend(rank, world_size),
      options_(std::move(options)),
      store_(store),
      met_in_(store),
      communicator_(std::move(communicator)),
      queue_(std::make_shared<Queue>())
#ifdef C10D_BACKEND_HAS_RECONFIGURE
      ,
      handle_(new_handle())
#endif
{
  init();
  begin_record();
  const std::lock_guard lock(backends().mutex);
  backends().all.push_back(this);
}

void RingBackend::begin_record() {
  observer_->begin_record(options_->group_name, options_->global_ranks_in_group, rank_, size_,
                          FlightRecorder::Life{.description = [this] { return getGroupDesc(); },
                                               .look =
                                                   [this] {
                                                     std::lock_guard lock(device_mutex_);
                                                     if (device_group_)
                                                       device_group_->note_completed();
                                                   },
                                               .request_dumps = dump_requests_of(communicator_)});
  if (options_->made && rank_ == 0 && communicator_) {
    options_->made(communicator_->group().segment().descriptor());
  }
  const auto write = observer_->on_dump_request();
  if (!write || !communicator_ || size_ == 1) return;
  shm::Group& group = communicator_->group();
  group.answer_dump_requests([write, &group] { write(group.failure().has_value()); });
}

void RingBackend::eagerConnectSingleDevice(at::Device device) {
  check_usable();
  if (device.is_cpu()) return;  // which a group has met on
  with_torch_errors([&] { device_group(device).connect(options_->timeout); });
}

RingBackend::~RingBackend() {
  if (!fork_guard_.is_here()) {
    abandon();
    return;
  }
  {
    const std::lock_guard lock(backends().mutex);
    std::erase(backends().all, this);
  }
  at_the_end([this] { close("the process group is closed", /*abort=*/false); });
  // They end here, because their destructors wait for their threads.
  without_gil([&] {
    at_the_end([this] { observer_->end_record(); });
    device_group_.reset();
    queue_.reset();
    communicator_.reset();
  });
}

// The device comes first: a clean end of its communicator takes all ranks, which the host's group
// brings together.
void RingBackend::shutdown() {
  if (!fork_guard_.is_here()) return;
  if (device_group_) without_gil([&] { device_group_->shut_down(options_->timeout); });
  close("the process group is closed", /*abort=*/false);
}

void RingBackend::abort() {
  if (!fork_guard_.is_here()) return;
  without_gil([&] { observer_->aborted(); });
  close("the process group was aborted", /*abort=*/true);
}

std::weak_ptr<Queue> RingBackend::leave() {
  if (!fork_guard_.is_here()) return {};
  close("the process ends", /*abort=*/false);
  return queue_;
}

void close_all() {
  std::vector<std::weak_ptr<Queue>> queues;
  {
    const std::lock_guard lock(backends().mutex);
    for (RingBackend* backend : backends().all) queues.push_back(backend->leave());
  }
  const auto busy = [&] {
    return CallGuard::any() || std::any_of(queues.begin(), queues.end(), [](const auto& held) {
             const std::shared_ptr<Queue> queue = held.lock();
             return queue && !queue->is_idle();
           });
  };
  const bool was_busy = busy();
  poll_for(kPatience, Poll(kPollEvery), [&] { return !busy(); });
  if (was_busy) std::this_thread::sleep_for(kToTakeTheGil);
  end_flight_recorder();
}

// A forked child has inherited these: it has no threads to end, and must not contact the peers.
void RingBackend::abandon() {
  new auto(std::move(communicator_));
  new auto(std::move(queue_));
  device_group_.release();
}

void RingBackend::check_usable() {
  if (!fork_guard_.is_here()) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("ring: process ", getpid(),
                             " was forked from a member of this "
                             "process group, which it cannot use. Make process groups after the "
                             "fork, or start processes by spawn or forkserver."));
  }
  check_has_members();
  TORCH_CHECK(!suspended_.load(std::memory_order_relaxed),
              "ring: this group is suspended; resume makes it usable again");
  std::call_once(named_, [&] {
    const std::string& description = getGroupDesc();
    if (!description.empty() && description != "undefined") {
      communicator_->group().rename(description);
    }
  });
}

void RingBackend::close(const std::string& reason, bool abort) {
  without_gil([&] {
    const std::string name = communicator_ ? communicator_->group().members.name(rank_)
                                           : "rank " + std::to_string(rank_);
    const std::string who = name + ": " + reason;
    if (communicator_ && abort) communicator_->abort(who);
    if (communicator_ && !abort) communicator_->close(reason);
    // What is queued now fails at once.
    while (queue_->help()) {
    }
    if (device_group_) device_group_->abort(who);
  });
}

RingBackend::WorkPtr RingBackend::submit(Operation operation, Operation::Body body) {
  check_usable();
  const bool on_host = operation.memory.empty() || operation.memory.front().is_cpu();
  if (estimate_ && on_host) return add_to_estimate(std::move(operation));
  if (std::exchange(estimate_, std::nullopt)) refuse_in_estimate("a collective on a device");
  if (operation.reads) check_values(operation.inputs, operation.type);
  DeviceGroup* device = on_host ? nullptr : &device_group(operation.memory.front().device());
  Submission submission{std::move(operation), std::move(body), device};
  if (!held_) return begin(std::move(submission), coalescing_ ? &*coalescing_ : nullptr);
  held_->push_back(std::move(submission));
  return nullptr;
}

RingBackend::WorkPtr RingBackend::begin(Submission submission, Coalescing* coalescing) {
  Operation& operation = submission.operation;
  operation.sequence = ++sequence_;
  operation.extension = extension_;
  Report report;
  try {
    operation.report = report = observer_->collective(operation.type, operation.inputs,
                                                      operation.outputs, operation.timeout);
    return begin_numbered(std::move(submission), coalescing);
  } catch (...) {
    if (PendingCalls::any()) {
      --sequence_;
      report.withdrawn();
    }
    throw;
  }
}

RingBackend::WorkPtr RingBackend::begin_numbered(Submission submission, Coalescing* coalescing) {
  auto& [operation, body, device] = submission;
  if (device == nullptr) return begin_on_host(std::move(submission), coalescing);
  if (coalescing != nullptr) coalescing->add(*device, operation.outputs);
  PendingCalls::note_known();  // as far as that goes: devices do not wait for calls on the host
  return with_reported_errors(operation.report, [&] { return device->enqueue(operation, body); });
}

RingBackend::WorkPtr RingBackend::begin_on_host(Submission submission, Coalescing* coalescing) {
  auto& [operation, body, device] = submission;
  const CallGuard inside;
  const bool ends_here = !operation.async && coalescing == nullptr;
  const bool may_end_soon = operation.async && coalescing == nullptr && operation.may_be_tried &&
                            communicator_->may_settle_soon(operation.inputs.front().nbytes());
  const auto timeout = operation.timeout;
  const int num_calls = operation.num_calls;
  if (coalescing != nullptr) coalescing->parts.reserve(coalescing->parts.size() + 1);
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(operation), queue_);
  const auto call =
      std::make_shared<HostCall>(work, std::move(body), communicator_, num_calls, timeout);
  // Tensors that go with it may need Python.
  const auto queued = [&] {
    return Queue::Operation{[call] { call->run(); }, [call] { call->complete(); },
                            std::make_shared<CallGuard>()};
  };
  if (may_end_soon) queue_->provide_thread();
  if ((ends_here || may_end_soon) && queue_->try_enter()) {
    Queue::Turn turn(*queue_);
    if (ends_here) call->run();
    bool is_over = ends_here || call->run_soon();
    if (!is_over && error_of([&] { turn.hand_over(queued()); })) {
      call->run();  // without memory; the other ranks may have seen the call
      is_over = true;
    }
    PendingCalls::note_known();
    turn.leave();
    if (is_over) call->complete();
    return work;
  }
  queue_->submit(queued());
  PendingCalls::note_known();
  if (coalescing != nullptr) coalescing->parts.push_back(work);
  return work;
}

// "rank 1 in all_reduce"
std::string RingBackend::where(const char* what) const {
  const std::string name =
      communicator_ ? communicator_->group().members.name(rank_) : "rank " + std::to_string(rank_);
  return name + " in " + what;
}

void RingBackend::announce_and_rethrow(const char* what, std::size_t num_pending,
                                       std::size_t num_calls) {
  const std::exception_ptr error = std::current_exception();
  try {
    throw;
  } catch (const NoThread&) {
    if (num_pending < num_calls) {
      announce_refusal(what_of(error), num_pending);
    } else {
      communicator_->group().note_unmade();
    }
  } catch (const std::bad_alloc&) {
    if (num_pending > 0) {
      announce_refusal(what_of(error), num_pending);
    } else {  // the call is made, and its caller learns nothing of it
      communicator_->group().fail_with(error, [&] { return std::string(what); });
    }
  } catch (...) {
    if (num_pending > 0) announce_refusal(reason_of(error), num_pending);
  }
  rethrow_from_call(error, where(what));
}

void RingBackend::announce_message_and_rethrow(shm::Message::Kind kind, int peer, int tag,
                                               std::size_t num_pending) {
  const std::exception_ptr error = std::current_exception();
  try {
    throw;
  } catch (const NoThread&) {
    communicator_->group().note_unmade();
  } catch (...) {
    if (num_pending > 0) refuse_message(kind, peer, tag, reason_of(error));
  }
  rethrow_from_call(error, where(kind == shm::Message::Kind::kSend ? "send" : "recv"));
}

void RingBackend::announce_refusal(const std::string& reason, std::size_t num_collectives) {
  if (std::exchange(estimate_, std::nullopt)) return;  // no other rank makes that call
  if (size_ == 1 || !fork_guard_.is_here() || !communicator_) return;
  for (std::size_t i = 0; i < num_collectives; ++i) {
    ++sequence_;
    observer_->refused();
    const auto announce = [host = communicator_, timeout = options_->timeout, reason] {
      error_of([&] { host->refuse(reason, timeout); });
    };
    if (queue_->try_enter()) {
      Queue::Turn turn(*queue_);
      if (communicator_->may_refuse()) {
        announce();
        continue;
      }
    }
    const std::exception_ptr error = error_of([&] { queue_->submit({announce, [] {}}); });
    if (!error) continue;
    if (queue_->try_enter()) {
      Queue::Turn turn(*queue_);
      announce();  // no thread can be had for it
    } else {
      communicator_->group().fail_with(error, [] { return std::string("refusing a call"); });
    }
  }
}

void RingBackend::refuse_message(shm::Message::Kind kind, int peer, int tag,
                                 const std::string& reason) {
  if (std::exchange(estimate_, std::nullopt)) return;
  const bool is_peer = peer >= 0 && peer < size_ && peer != rank_;
  const bool may_match = is_peer || peer == shm::kAnySource;
  if (!may_match || tag < 0 || !fork_guard_.is_here() || !communicator_) return;
  const std::exception_ptr error =
      error_of([&] { communicator_->refuse_message(kind, peer, tag, reason, options_->timeout); });
  const bool is_send = kind == shm::Message::Kind::kSend;
  if (!error) return observer_->refused(FlightRecorder::MessageRecord{is_send, peer, tag});
  communicator_->group().fail_with(error, [] { return std::string("refusing a message"); });
}

DeviceGroup& RingBackend::device_group(at::Device device) {
  check_has_members();
  std::lock_guard lock(device_mutex_);
  if (!device_group_) {
    device_group_ = with_torch_errors([&] {
      streams::DeviceOptions options = options_->device;
      options.selection = options_->selection;
      return make_cuda_group(communicator_->group(), device, options);
    });
  }
  TORCH_CHECK_VALUE(device_group_->device() == device, "ring: got a tensor on ", device,
                    ", but this rank's part of the group is on ", device_group_->device(),
                    "; a rank has one device in a group");
  return *device_group_;
}

// This must not throw: torch asks before it makes a batch of messages, and their peers would wait.
bool RingBackend::supportsCoalescing() const {
  return *missing_for_cuda() == '\0' && at::hasCUDA();
}

RingBackend::WorkPtr RingBackend::coalesce(c10d::OpType type, const char* title,
                                           const Tensors& inputs, const Tensors& outputs,
                                           const std::function<void()>& submit_all) {
  held_.emplace();
  const std::exception_ptr refusal = error_of(submit_all);
  std::vector<Submission> submissions = *std::exchange(held_, std::nullopt);
  if (refusal) std::rethrow_exception(refusal);
  Coalescing coalesced;
  for (Submission& submission : submissions) {
    submission.operation.title = nullptr;
    begin(std::move(submission), &coalesced);
  }
  return join(coalesced, {type, title, inputs, outputs, {}, timeout_or_default({})});
}

// Operations of an unfinished coalescing, which an exception has ended, are under way as they are.
void RingBackend::startCoalescing() { coalescing_.emplace(); }

RingBackend::WorkPtr RingBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "ring: endCoalescing called without startCoalescing");
  Coalescing coalesced = *std::exchange(coalescing_, std::nullopt);
  return join(coalesced, {c10d::OpType::COALESCED,
                          nullptr,
                          {},
                          coalesced.outputs,
                          memory_of(coalesced.data),
                          timeout_or_default({})});
}

// The parts are under way. Where they cannot be joined the caller gets no work of them, so the
// group fails, which the other ranks see.
RingBackend::WorkPtr RingBackend::join(Coalescing& coalesced, Operation operation) {
  try {
    return join_parts(coalesced, std::move(operation));
  } catch (const std::bad_alloc&) {
    communicator_->group().fail_with(std::current_exception(),
                                     [] { return std::string("a coalesced call"); });
    throw;
  }
}

RingBackend::WorkPtr RingBackend::join_parts(Coalescing& coalesced, Operation operation) {
  operation.sequence = sequence_;
  if (!estimate_) {
    operation.report = observer_->joint();
    operation.extension = extension_;
  }
  if (DeviceGroup* device = coalesced.device) {
    TORCH_CHECK_VALUE(coalesced.parts.empty(), "ring: operations on the CPU and on ",
                      device->device(), " cannot be coalesced; make one batch for each");
    if (coalescing_) coalescing_->add(*device, operation.outputs);
    operation.report.add(coalesced.report);
    return with_reported_errors(operation.report, [&] {
      return coalesced.messages.empty()
                 ? device->join(operation)
                 : device->exchange(operation, coalesced.messages, coalesced.data);
    });
  }
  auto work =
      c10::make_intrusive<CoalescedWork>(rank_, std::move(operation), std::move(coalesced.parts));
  work->await_parts();
  if (coalescing_) coalescing_->parts.push_back(work);
  return work;
}

}  // namespace ringcomm
