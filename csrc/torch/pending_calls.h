// The collectives of the call under way on this thread that the other ranks do not know of yet.
//
// A call is counted on until it is announced or queued; from then on its failure is its own. What
// is thrown before that has to be announced as a refusal, or the other ranks would meet this rank's
// next call in its place.
#pragma once

#include <cstddef>
#include <utility>

namespace ringcomm {

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

}  // namespace ringcomm
