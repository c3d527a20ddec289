// Points at which one rank can be made to fail: the n-th that it comes to. A test program says
// which there are (fault_injection.h); what the tests themselves need is spared.
#pragma once

#include <atomic>
#include <new>
#include <utility>

namespace faults {

// The rank that fails. It outlives the threads that work for it.
class Victim {
 public:
  void arm(long point) {
    points_left_ = point;
    is_armed_ = true;
  }
  // Whether the point was reached.
  bool disarm() {
    is_armed_ = false;
    return points_left_ <= 0;
  }
  // To be asked at each point where something may fail: whether it does now.
  bool fails() { return is_armed_ && points_left_.fetch_sub(1) == 1; }

  std::atomic<bool> has_threads{true};

 private:
  std::atomic<bool> is_armed_{false};
  std::atomic<long> points_left_{0};
};

// That this thread works for, if it does; threads that it starts inherit it.
inline thread_local Victim* victim_here = nullptr;

inline bool fails_here() { return victim_here != nullptr && victim_here->fails(); }

// For as long as it lives, this thread works for the victim; for none if that is null.
class Working {
 public:
  explicit Working(Victim* victim) : before_(std::exchange(victim_here, victim)) {}
  ~Working() { victim_here = before_; }

 private:
  Victim* const before_;
};

// For as long as it lives, nothing that this thread does fails.
struct Spared : Working {
  Spared() : Working(nullptr) {}
};

// A point of its own, for what would allocate if it were no test's.
inline void may_fail() {
  if (fails_here()) throw std::bad_alloc();
}

}  // namespace faults
