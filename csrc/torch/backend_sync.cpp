// Calls that are carried out at once, on the thread that calls: as the methods of the same
// name do it, where nothing has to be copied and nothing is queued. Each returns False, with
// nothing done, where that cannot be.
#include <ATen/record_function.h>

#include "core/flight_dump.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/call_guard.h"
#include "torch/errors.h"
#include "torch/pending_calls.h"

namespace ringcomm {
namespace {

// The message has a deadline of its own.
constexpr auto kAsLongAsItMay = std::chrono::hours(24 * 365);

bool can_stay(const at::Tensor& tensor) { return tensor.is_cpu() && lies_flat(tensor); }

// A message that is waited for at once, and so no Work. Whoever is interrupted leaves it behind,
// with what it needs.
class SyncMessage {
 public:
  SyncMessage(at::Tensor tensor, const FlightMark& mark, std::shared_ptr<const Hooks> hooks)
      : tensor_(std::move(tensor)), mark_(mark), hooks_(std::move(hooks)) {
    message.on_done = [this](std::exception_ptr cause) { done(cause); };
  }

  void done(std::exception_ptr cause) {
    if (!cause) return mark_.complete(message.peer);
    error = cause;  // unless more can be said
    call_abort_hooks(*hooks_, cause);
    error = for_torch(failed(mark_, cause));
  }

  shm::Message message;
  std::exception_ptr error;

 private:
  const CallGuard inside_;  // until the tensor is gone, which may need Python to go
  const at::Tensor tensor_;
  const FlightMark mark_;
  const std::shared_ptr<const Hooks> hooks_;
};

}  // namespace

template <typename Record, typename Body>
bool RingBackend::at_once(Record record, Body body) {
  if (!needs_no_work()) return false;
  check_usable();
  const CallGuard inside;
  if (!queue_->try_enter()) return false;
  Queue::Turn turn(*queue_);
  ++sequence_;
  const std::chrono::milliseconds timeout = options_->timeout;
  FlightMark mark;
  const std::exception_ptr error = error_of([&] {
    communicator_->settled(1, timeout, [&] {
      mark = record(timeout);
      body(*communicator_, timeout);
    });
  });
  PendingCalls::note_known();
  turn.leave();
  if (error) {
    call_abort_hooks(*hooks_, error);
    rethrow_for_torch(failed(mark, error));
  }
  mark.complete();
  return true;
}

bool RingBackend::is_profiled() { return at::hasCallbacks(); }

bool RingBackend::try_all_reduce_sync(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const char* what = "all_reduce";
  check_output(tensor, what);
  // Of complex numbers torch makes pairs first: another dtype to the peers.
  if (!can_stay(tensor) || tensor.is_complex()) return false;
  const Elements elements = elements_to_reduce(tensor.scalar_type(), op, what);
  const Reduce reduce = make_reduce(elements, op, what);
  return at_once(
      [&](auto timeout) {
        return flight_->begun(c10d::OpType::ALLREDUCE, &tensor, &tensor, timeout);
      },
      [&](Communicator& communicator, auto timeout) {
        void* buffer = tensor.data_ptr();
        communicator.all_reduce(buffer, buffer, elements.count(tensor), reduce, timeout);
      });
}

bool RingBackend::try_reduce_scatter_sync(const at::Tensor& output, const at::Tensor& input,
                                          const c10d::ReduceOp& op) {
  const char* what = "reduce_scatter_tensor";
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
  check_numel(input.numel(), output.numel() * size_, what, "input tensor");
  if (!can_stay(output) || !can_stay(input) || input.is_complex()) return false;
  if (!is_piece(input, output, rank_) && overlap(input, output)) return false;
  const Elements elements = elements_to_reduce(output.scalar_type(), op, what);
  const Reduce reduce = make_reduce(elements, op, what);
  return at_once(
      [&](auto timeout) {
        return flight_->begun(c10d::OpType::_REDUCE_SCATTER_BASE, &input, &output, timeout);
      },
      [&](Communicator& communicator, auto timeout) {
        communicator.reduce_scatter(pieces<Input>(input, elements, size_), output.data_ptr(),
                                    reduce, timeout);
      });
}

bool RingBackend::try_all_gather_sync(const at::Tensor& output, const at::Tensor& input) {
  const char* what = "all_gather_into_tensor";
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
  check_numel(output.numel(), input.numel() * size_, what, "output tensor");
  if (!can_stay(output) || !can_stay(input) || input.is_complex()) return false;
  if (!is_piece(output, input, rank_) && overlap(input, output)) return false;
  const Elements elements = elements_to_move(input.scalar_type());
  return at_once(
      [&](auto timeout) {
        return flight_->begun(c10d::OpType::_ALLGATHER_BASE, &input, &output, timeout);
      },
      [&](Communicator& communicator, auto timeout) {
        communicator.all_gather(input.const_data_ptr(), pieces<Output>(output, elements, size_),
                                elements, timeout);
      });
}

bool RingBackend::try_broadcast_sync(const at::Tensor& tensor, int root) {
  const char* what = "broadcast";
  check_tensor(tensor, what);
  check_root(root, size_, what);
  if (root != rank_) check_output(tensor, what);
  if (!can_stay(tensor) || tensor.is_complex()) return false;
  const Elements elements = elements_to_move(tensor.scalar_type());
  return at_once(
      [&](auto timeout) {
        return flight_->begun(c10d::OpType::BROADCAST, &tensor, &tensor, timeout);
      },
      [&](Communicator& communicator, auto timeout) {
        communicator.broadcast(tensor.data_ptr(), elements.count(tensor), elements, root, timeout);
      });
}

bool RingBackend::try_reduce_sync(const at::Tensor& tensor, int root, const c10d::ReduceOp& op) {
  const char* what = "reduce";
  check_tensor(tensor, what);
  check_root(root, size_, what);
  if (root == rank_) check_output(tensor, what);
  if (!can_stay(tensor) || tensor.is_complex()) return false;
  const Elements elements = elements_to_reduce(tensor.scalar_type(), op, what);
  const Reduce reduce = make_reduce(elements, op, what);
  return at_once(
      [&](auto timeout) { return flight_->begun(c10d::OpType::REDUCE, &tensor, &tensor, timeout); },
      [&](Communicator& communicator, auto timeout) {
        void* buffer = tensor.data_ptr();
        communicator.reduce(buffer, buffer, elements.count(tensor), reduce, root, timeout);
      });
}

bool RingBackend::try_all_to_all_sync(const at::Tensor& output, const at::Tensor& input) {
  const char* what = "all_to_all_single";
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
  check_equal_rows(output, size_, what, "output tensor");
  check_equal_rows(input, size_, what, "input tensor");
  if (!can_stay(output) || !can_stay(input) || input.is_complex()) return false;
  if (overlap(input, output)) return false;
  const Elements elements = elements_to_move(input.scalar_type());
  return at_once(
      [&](auto timeout) {
        return flight_->begun(c10d::OpType::ALLTOALL_BASE, &input, &output, timeout);
      },
      [&](Communicator& communicator, auto timeout) {
        communicator.all_to_all(pieces<Input>(input, elements, size_),
                                pieces<Output>(output, elements, size_), elements, timeout);
      });
}

bool RingBackend::try_barrier_sync() {
  return at_once(
      [&](auto timeout) {
        return flight_->begun(c10d::OpType::BARRIER, nullptr, nullptr, timeout);
      },
      [](Communicator& communicator, auto timeout) { communicator.barrier(timeout); });
}

bool RingBackend::try_message_sync(shm::Message::Kind kind, const at::Tensor& tensor, int peer,
                                   int tag) {
  const bool is_send = kind == shm::Message::Kind::kSend;
  const char* what = is_send ? "send" : "recv";
  check_tensor(tensor, what);
  if (!is_send) check_output(tensor, what);
  if (!can_stay(tensor) || tensor.is_complex() || tensor.is_neg()) return false;
  if (peer == rank_ || !needs_no_work() || is_profiled()) return false;
  check_usable();
  const std::chrono::milliseconds timeout = options_->timeout;
  const auto own = std::make_shared<SyncMessage>(
      tensor, flight_->message({is_send, peer, tag}, tensor, timeout, true), hooks_);
  const std::shared_ptr<shm::Message> message(own, &own->message);
  const Elements elements = elements_to_move(tensor.scalar_type());
  message->kind = kind;
  message->peer = peer;
  message->tag = tag;
  message->dtype = elements.dtype;
  message->users = elements.users;
  message->data = static_cast<std::byte*>(tensor.data_ptr());
  message->count = elements.count(tensor);
  message->deadline = Deadline::roughly_in(timeout);
  message->is_awaited = true;
  if (const std::exception_ptr error = error_of([&] { communicator_->post(message); })) {
    own->done(error);
    std::rethrow_exception(own->error);
  }
  PendingCalls::note_known();
  if (!message->done.load(std::memory_order_acquire)) {
    communicator_->wait(*message, kAsLongAsItMay);
  }
  if (own->error) std::rethrow_exception(own->error);
  return true;
}

}  // namespace ringcomm
