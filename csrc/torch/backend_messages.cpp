// send, recv and recvAnysource: see shm/mail.h.
#include <algorithm>
#include <cstring>

#include "torch/announced.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/python.h"
#include "torch/work.h"

namespace ringcomm {
namespace {

// Profilers show a title, errors the name alone: "ring:send", "send".
constexpr char kTitlePrefix[] = "ring:";
const char* name_in(const char* title) { return title + std::strlen(kTitlePrefix); }

// The message has a deadline of its own.
constexpr auto kAsLongAsItMay = std::chrono::hours(24 * 365);

// A message between CPU tensors.
class MessageWork : public RingWork {
 public:
  MessageWork(int rank, Operation operation, std::shared_ptr<Communicator> communicator)
      : RingWork(rank, std::move(operation)), communicator_(std::move(communicator)) {}

  // Throws if the group is broken.
  void post(std::shared_ptr<shm::Message> message) {
    message_ = std::move(message);
    start();
    communicator_->post(message_);
  }
  int sourceRank() const override { return message_->peer; }

 protected:
  void help(std::chrono::milliseconds patience) override {
    const std::chrono::milliseconds most = kAsLongAsItMay;
    communicator_->wait(*message_, std::min(patience, most));
  }

 private:
  const std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<shm::Message> message_;
};

// A message that is waited for at once, and so no Work. An interrupt leaves it behind, with what it
// needs.
class SyncMessage {
 public:
  SyncMessage(at::Tensor tensor, Report report)
      : tensor_(std::move(tensor)), report_(std::move(report)) {
    message.on_done = [this](std::exception_ptr cause) { done(cause); };
  }

  void done(std::exception_ptr cause) {
    if (!cause) {
      if (message.kind == shm::Message::Kind::kRecv) report_.has_result({&tensor_, 1});
      return report_.succeeded(message.peer);
    }
    error = cause;  // unless more can be said
    error = report_.failed(cause);
  }

  shm::Message message;
  std::exception_ptr error;

 private:
  const CallGuard inside_;  // until the tensor is gone, which may need Python to go
  const at::Tensor tensor_;
  const Report report_;
};

// What is sent, or where it is received: the elements of a flat tensor.
void describe(shm::Message& message, shm::Message::Kind kind, const at::Tensor& flat, int peer,
              int tag) {
  const Elements elements = elements_to_move(flat.scalar_type());
  message.kind = kind;
  message.peer = peer;
  message.tag = tag;
  message.dtype = elements.dtype;
  message.users = elements.users;
  message.data = static_cast<std::byte*>(flat.data_ptr());
  message.count = elements.count(flat);
}

}  // namespace

RingBackend::WorkPtr RingBackend::send_or_recv(shm::Message::Kind kind, Tensors& tensors, int peer,
                                               int tag, c10d::OpType type, const char* title) {
  check_usable();
  const char* what = name_in(title);
  if (estimate_) refuse_in_estimate(what);
  const bool is_send = kind == shm::Message::Kind::kSend;
  const at::Tensor& tensor = single(tensors, what, "tensor");
  check_tensor(tensor, what);
  if (is_send) check_values(tensor);
  if (!is_send) check_output(tensor, what);
  TORCH_CHECK_VALUE(peer == shm::kAnySource || (peer >= 0 && peer < size_), "ring: ", what,
                    ": the peer is rank ", peer, "; it must be 0 to ", size_ - 1);
  TORCH_CHECK_VALUE(peer != rank_, "ring: ", what, ": rank ", rank_,
                    " cannot send to or receive from itself");
  TORCH_CHECK_VALUE(tag >= 0, "ring: ", what, ": the tag is ", tag, "; it must not be negative");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_cpu() || peer != shm::kAnySource,
                              "ring: recv from any source: got a tensor on ", tensor.device(),
                              "; only CPU tensors can be received that way");

  Writable data(tensor, /*needs_contents=*/is_send);
  Operation operation{type, title, tensors, tensors, memory_of(data), timeout_or_default({})};
  operation.sequence = sequence_;
  operation.has_result = !is_send;
  const Report report =
      observer_->message({is_send, peer, tensor.is_cpu() ? tag : 0}, tensor, operation.timeout);
  operation.report = report;
  operation.extension = extension_;
  return recorded(report, [&] {
    return tensor.is_cpu()
               ? send_or_recv_on_host(kind, std::move(operation), std::move(data), peer, tag)
               : send_or_recv_on_device(is_send, operation, std::move(data), peer);
  });
}

RingBackend::WorkPtr RingBackend::send_or_recv_on_host(shm::Message::Kind kind, Operation operation,
                                                       Writable data, int peer, int tag) {
  auto message = std::make_shared<shm::Message>();
  describe(*message, kind, data.flat(), peer, tag);
  message->deadline = Deadline::in(operation.timeout);
  const Report report = operation.report;
  auto work = c10::make_intrusive<MessageWork>(rank_, std::move(operation), communicator_);
  // Last to go: tensors that go with the rest may need Python.
  struct Held {
    std::shared_ptr<CallGuard> inside = std::make_shared<CallGuard>();
    c10::intrusive_ptr<MessageWork> work;
    Writable data;
  };
  message->on_done = [held = Held{.work = work, .data = std::move(data)}, kind,
                      host = communicator_](std::exception_ptr error) {
    const auto& [inside, work, data] = held;
    if (!error && kind == shm::Message::Kind::kRecv) {
      error = error_of([&] { data.commit(); });
      // The message is taken: to receive again would take the next one.
      if (error) host->group().fail_with(error, [] { return std::string("recv"); });
    }
    if (!error) work->note_result();
    work->complete(error, work->sourceRank());
  };
  if (coalescing_) coalescing_->parts.reserve(coalescing_->parts.size() + 1);
  with_reported_errors(report, [&] { work->post(std::move(message)); });
  PendingCalls::note_known();
  if (coalescing_) coalescing_->parts.push_back(work);
  return work;
}

// As with NCCL, messages on devices have no tags: they are received in the order they were sent.
RingBackend::WorkPtr RingBackend::send_or_recv_on_device(bool is_send, const Operation& operation,
                                                         Writable data, int peer) {
  const at::Tensor& flat = data.flat();
  DeviceGroup& device = device_group(flat.device());
  const PeerMessage message{is_send, peer, flat.data_ptr(), flat.nbytes()};
  if (!coalescing_) {
    return with_reported_errors(operation.report,
                                [&] { return device.exchange(operation, {message}, {data}); });
  }
  coalescing_->add(device, operation.outputs);
  coalescing_->messages.push_back(message);
  coalescing_->data.push_back(std::move(data));
  coalescing_->report.add(operation.report);
  return nullptr;
}

RingBackend::WorkPtr RingBackend::send(Tensors& tensors, int peer, int tag) {
  using enum shm::Message::Kind;
  return announced_message(kSend, first(tensors), peer, tag, [&] {
    return send_or_recv(kSend, tensors, peer, tag, c10d::OpType::SEND, "ring:send");
  });
}

RingBackend::WorkPtr RingBackend::recv(Tensors& tensors, int peer, int tag) {
  using enum shm::Message::Kind;
  return announced_message(kRecv, first(tensors), peer, tag, [&] {
    return send_or_recv(kRecv, tensors, peer, tag, c10d::OpType::RECV, "ring:recv");
  });
}

RingBackend::WorkPtr RingBackend::recvAnysource(Tensors& tensors, int tag) {
  using enum shm::Message::Kind;
  return announced_message(kRecv, first(tensors), shm::kAnySource, tag, [&] {
    return send_or_recv(kRecv, tensors, shm::kAnySource, tag, c10d::OpType::RECVANYSOURCE,
                        "ring:recvAnySource");
  });
}

RingBackend::WorkPtr RingBackend::begin_message(shm::Message::Kind kind, const at::Tensor& tensor,
                                                int peer, int tag) {
  if (!tensor.is_cpu() || tensor.is_neg() || peer == rank_) return nullptr;
  Tensors tensors{tensor};
  return kind == shm::Message::Kind::kSend ? send(tensors, peer, tag) : recv(tensors, peer, tag);
}

bool RingBackend::try_message_sync(shm::Message::Kind kind, const at::Tensor& tensor, int peer,
                                   int tag) {
  return announced_message(kind, tensor, peer, tag,
                           [&] { return run_message_sync(kind, tensor, peer, tag); });
}

bool RingBackend::run_message_sync(shm::Message::Kind kind, const at::Tensor& tensor, int peer,
                                   int tag) {
  const bool is_send = kind == shm::Message::Kind::kSend;
  const char* what = is_send ? "send" : "recv";
  check_tensor(tensor, what);
  if (!is_send) check_output(tensor, what);
  if (!can_stay(tensor) || tensor.is_neg()) return false;
  if (peer == rank_ || !needs_no_work() || Observer::is_profiled()) return false;
  check_usable();
  if (is_send) check_values(tensor);
  const std::chrono::milliseconds timeout = options_->timeout;
  const Report report =
      observer_->message({is_send, peer, tag}, tensor, timeout, /*starts_at_once=*/true);
  const auto own = recorded(report, [&] {
    auto own = std::make_shared<SyncMessage>(tensor, report);
    const std::shared_ptr<shm::Message> message(own, &own->message);
    describe(*message, kind, tensor, peer, tag);
    message->deadline = Deadline::roughly_in(timeout);
    message->is_awaited = true;
    if (const std::exception_ptr error = error_of([&] { communicator_->post(message); })) {
      own->done(error);
      std::rethrow_exception(own->error);
    }
    return own;
  });
  PendingCalls::note_known();
  if (!own->message.done.load(std::memory_order_acquire)) {
    communicator_->wait(own->message, kAsLongAsItMay);
  }
  if (own->error) std::rethrow_exception(own->error);
  return true;
}

}  // namespace ringcomm
