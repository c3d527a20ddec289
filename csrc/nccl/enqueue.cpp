// Enqueueing: what is called on a communicator while all is well.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "nccl/communicator.h"
#include "nccl/errors.h"
#include "streams/choice.h"

namespace ringcomm::nccl {

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
    failure_->check();  // the first cause: what NCCL says may be but that all was ended for it
    throw;
  } catch (...) {  // not of ours: of what others enqueue beside it
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

Enqueued Communicator::enqueue_behind(cudaStream_t user,
                                      const std::function<void(Collectives&)>& body) {
  return guarded([&] {
    captured_ = captures_.note(user, stream());
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), user));
    RINGCOMM_CHECK(cudaStreamWaitEvent(stream(), began_.get(), 0));
    captures_.begin(stream(), captured_);
    under_way_ = event_pool_.take();
    body(*this);
    captures_.end(stream(), captured_);
    under_way_->record(stream(), captured_);
    return Enqueued{std::move(under_way_), stream()};
  });
}

void Communicator::announce(Call& call, const Deadline& deadline) {
  connect_all(deadline);
  call.sequence = ++sequence_;
  board_.enqueue(call);
}

// By then it is known whether all ranks reach each other's memory.
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
  if (!captured_) watchdog_->add({call, deadline, under_way_});
  // Once the call is announced: where ranks call different ones, they would wait for each other.
  if (!is_eager) {
    connect_edges(unconnected(program), deadline);
    connected_programs_.insert(&program);
  }
  telling([&] { return describe_numbered(call, group_.members); },
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
                                const std::function<void(std::size_t, cudaStream_t)>& after) {
  const Deadline deadline = Deadline::in(timeout);
  return guarded([&] {
    captured_ = captures_.note(user, stream());
    connect_pairs(messages, deadline);
    RINGCOMM_CHECK(cudaEventRecord(began_.get(), user));
    std::vector<Enqueued> ends;  // by stream
    for (const PeerMessage& message : messages) {
      const cudaStream_t stream = connections_.messages().stream_of(message);
      const auto known = [&](const Enqueued& enqueued) { return enqueued.stream == stream; };
      if (std::any_of(ends.begin(), ends.end(), known)) continue;
      ends.push_back({event_pool_.take(), stream});
      RINGCOMM_CHECK(cudaStreamWaitEvent(stream, began_.get(), 0));
      if (!captured_) watchdog_->add({message, deadline, ends.back().end});
    }
    telling([&] { return describe(messages.front()); },
            [&] { connections_.messages().enqueue(messages); });
    for (std::size_t i = 0; i < messages.size(); ++i)
      after(i, connections_.messages().stream_of(messages[i]));
    for (const Enqueued& enqueued : ends) enqueued.end->record(enqueued.stream, captured_);
    if (ends.size() == 1) return ends.back();
    // One stream for whoever waits for all.
    const Enqueued all{event_pool_.take(), ends.back().stream};
    for (const Enqueued& enqueued : ends) {
      if (enqueued.stream != all.stream) enqueued.end->make_wait(all.stream);
    }
    all.end->record(all.stream, captured_);
    return all;
  });
}

Enqueued Communicator::end_of_all() {
  return guarded([&] {
    const Enqueued enqueued{event_pool_.take(), stream()};
    enqueued.end->record(stream(), captured_);
    return enqueued;
  });
}

}  // namespace ringcomm::nccl
