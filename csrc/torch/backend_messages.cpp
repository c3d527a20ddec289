// send, recv and recvAnysource: see shm/mail.h.
#include "torch/backend.h"
#include "torch/errors.h"

namespace ringcomm {

RingBackend::WorkPtr RingBackend::launch_message(shm::Message::Kind kind, Tensors& tensors,
                                                 int peer, int tag, c10d::OpType type,
                                                 const char* title) {
  const char* what = title + 5;  // behind "ring:"
  TORCH_CHECK_VALUE(tensors.size() == 1, "ring: ", what, ": takes one tensor, got ",
                    tensors.size());
  check_tensor(tensors[0], what);
  if (kind == shm::Message::Kind::kRecv) check_output(tensors[0], what);
  TORCH_CHECK_VALUE(peer == shm::kAnySource || (peer >= 0 && peer < size_), "ring: ", what,
                    ": the peer is rank ", peer, "; it must be 0 to ", size_ - 1);
  TORCH_CHECK_VALUE(peer != rank_, "ring: ", what, ": rank ", rank_,
                    " cannot send to or receive from itself");
  TORCH_CHECK_VALUE(tag >= 0, "ring: ", what, ": the tag is ", tag, "; it must not be negative");

  const bool sends = kind == shm::Message::Kind::kSend;
  if (!tensors[0].is_cpu()) return launch_message_on_device(sends, tensors, peer, type, title);
  auto writable = std::make_shared<Writable>(tensors[0], /*needs_contents=*/sends);
  const Elements elements = elements_to_move(tensors[0].scalar_type());
  auto work =
      c10::make_intrusive<MessageWork>(communicator_, rank_, type, sequence_, title,
                                       std::optional<Tensors>(tensors), tensors, options_->timeout);
  auto message = std::make_shared<shm::Message>();
  message->kind = kind;
  message->peer = peer;
  message->tag = tag;
  message->dtype = elements.dtype;
  message->data = static_cast<std::byte*>(writable->flat().data_ptr());
  message->count = elements.count(tensors[0]);
  message->deadline = shm::Deadline::in(options_->timeout);
  message->on_done = [work, writable, sends](std::exception_ptr error) {
    if (!error && !sends) writable->commit();
    work->complete(error);
  };
  try {
    work->start(std::move(message));
  } catch (const Error&) {
    rethrow_for_torch(std::current_exception());
  }
  if (coalescing_) coalescing_->parts.push_back(work);
  return work;
}

// As with NCCL, messages on devices have no tags: they are received in the order they were sent.
RingBackend::WorkPtr RingBackend::launch_message_on_device(bool sends, Tensors& tensors, int peer,
                                                           c10d::OpType type, const char* title) {
  TORCH_CHECK_NOT_IMPLEMENTED(peer != shm::kAnySource,
                              "ring: recv from any source: got a tensor on ", tensors[0].device(),
                              "; only CPU tensors can be received that way");
  DeviceGroup& group = device_group(tensors[0].device());
  const DeviceGroup::Message message{sends, peer, Writable(tensors[0], /*needs_contents=*/sends)};
  if (coalescing_) {
    coalescing_->device = group.device();
    coalescing_->messages.push_back(message);
    coalescing_->outputs.push_back(tensors[0]);
    return nullptr;
  }
  const Launch launch{type, title, tensors, tensors, {}, options_->timeout, /*async=*/true};
  return with_torch_errors([&] { return group.exchange(launch, sequence_, {message}); });
}

RingBackend::WorkPtr RingBackend::send(Tensors& tensors, int peer, int tag) {
  return launch_message(shm::Message::Kind::kSend, tensors, peer, tag, c10d::OpType::SEND,
                        "ring:send");
}

RingBackend::WorkPtr RingBackend::recv(Tensors& tensors, int peer, int tag) {
  return launch_message(shm::Message::Kind::kRecv, tensors, peer, tag, c10d::OpType::RECV,
                        "ring:recv");
}

RingBackend::WorkPtr RingBackend::recvAnysource(Tensors& tensors, int tag) {
  return launch_message(shm::Message::Kind::kRecv, tensors, shm::kAnySource, tag,
                        c10d::OpType::RECVANYSOURCE, "ring:recvAnySource");
}

}  // namespace ringcomm
