// What this rank refuses, the other ranks raise, too: else they would wait for a rank that has
// raised, and may go on.
//
// For a message that is its peer, if the peer is one and the tag is one that it may be waiting for.
// Tensors on a device are not covered: devices do not wait for each other's calls on the host. What
// is checked before torch calls the backend is announced by ringcomm/_delegate.py.
#pragma once

#include <cstddef>
#include <utility>

#include "torch/backend.h"

namespace ringcomm {

// The collectives of the call under way on this thread that the other ranks do not know of yet.
//
// A call is counted on until it is announced or queued; from then on its failure is its own. What
// is thrown before that has to be announced as a refusal, or the other ranks would meet this rank's
// next call in its place.
class PendingCalls {
 public:
  explicit PendingCalls(std::size_t count)
      : count_(count), outer_(std::exchange(innermost(), this)) {}
  ~PendingCalls() { innermost() = outer_; }
  PendingCalls(const PendingCalls&) = delete;
  PendingCalls& operator=(const PendingCalls&) = delete;

  std::size_t count() const { return count_; }
  // Whether a call here is a part of one that answers for it. A callback's calls are not: it runs
  // when nothing of the call around it is pending any more.
  static bool any() { return innermost() != nullptr && innermost()->count_ > 0; }
  static void note_known() {
    if (any()) --innermost()->count_;
  }

 private:
  static PendingCalls*& innermost() {
    static thread_local PendingCalls* calls = nullptr;
    return calls;
  }

  std::size_t count_;
  PendingCalls* const outer_;
};

// body(), which makes the call `what`, or `num_calls` of them, for tensors like `tensor`.
template <typename Body>
auto RingBackend::announced(const char* what, const at::Tensor& tensor, std::size_t num_calls,
                            Body body) {
  if (PendingCalls::any() || (tensor.defined() && tensor.is_cuda())) return body();
  const PendingCalls pending(num_calls);
  try {
    return body();
  } catch (...) {
    announce_and_rethrow(what, pending.count(), num_calls);
  }
}

// body(), which makes a call that is in the record. If it cannot, and no other rank knows of the
// call yet, the call leaves the record: what is announced in its place takes its number.
template <typename Body>
auto recorded(const Report& report, Body body) {
  try {
    return body();
  } catch (...) {
    if (PendingCalls::any()) report.withdrawn();
    throw;
  }
}

// body(), which posts a message.
template <typename Body>
auto RingBackend::announced_message(shm::Message::Kind kind, const at::Tensor& tensor, int peer,
                                    int tag, Body body) {
  if (tensor.defined() && tensor.is_cuda()) return body();
  const PendingCalls pending(1);
  try {
    return body();
  } catch (...) {
    announce_message_and_rethrow(kind, peer, tag, pending.count());
  }
}

}  // namespace ringcomm
