#include "core/thread.h"
#include "torch/announced.h"
#include "torch/errors.h"

namespace ringcomm {

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
  if (size_ == 1 || !maker_.is_here() || !communicator_) return;
  for (std::size_t i = 0; i < num_collectives; ++i) {
    ++sequence_;
    flight_->refused();
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
  if (!may_match || tag < 0 || !maker_.is_here() || !communicator_) return;
  const std::exception_ptr error =
      error_of([&] { communicator_->refuse_message(kind, peer, tag, reason, options_->timeout); });
  if (!error) return;
  communicator_->group().fail_with(error, [] { return std::string("refusing a message"); });
}

}  // namespace ringcomm
