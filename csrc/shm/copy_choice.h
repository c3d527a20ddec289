// Whether the parts of an all-to-all are copied twice, into outboxes and out of them, or once, by
// the kernel, out of the process that has them.
//
// Two copies run at the speed of caches; one takes a system call and the look-up of every page. For
// parts from some hundred KiB on, one copy takes 0.7 to 1.5 times as long, depending on the machine
// and, where cores share a cache at some times only, on the time. So one rank of the group times
// both now and then, and sends the result with its announcements. (In other collectives two copies
// are made by two ranks at once, or the first one is for several.)
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

namespace ringcomm::shm {

// Chooses for calls of about one size.
class CopyChoice {
 public:
  // A trial is some calls in each way, of which the fastest counts: a rank that loses its core in
  // the middle of one has measured nothing. For long calls two are enough, and one if it takes much
  // longer.
  static constexpr int kCalls = 4;
  static constexpr int kLongCalls = 2;
  static constexpr double kLong = 2e-3;  // seconds
  static constexpr double kMuchLonger = 1.5;
  // Calls between two trials: twice as many after each that confirms what is done.
  static constexpr int kOften = 64;
  static constexpr int kSeldom = 2048;
  // One copy must take less than this part of the time of two copies.
  static constexpr double kFaster = 0.8;

  // How the next call is to go.
  bool by_kernel() const { return chosen_ != (phase_ == Phase::kTryOther); }
  // It went so, and took so long. Not to be called for calls that had no choice.
  void took(double seconds);

 private:
  // The way that is chosen is tried first, with calls that would have gone so anyway.
  enum class Phase { kTryChosen, kTryOther, kGo };

  Phase phase_ = Phase::kTryChosen;
  bool chosen_ = false;                                    // by the kernel
  int calls_ = 0;                                          // in this phase
  double best_ = std::numeric_limits<double>::infinity();  // seconds, of them
  double chosen_best_ = 0;                                 // of the trial's first half
  int interval_ = kOften;
};

inline void CopyChoice::took(double seconds) {
  best_ = std::min(best_, seconds);
  ++calls_;
  const bool has_tried = calls_ >= (seconds < kLong ? kCalls : kLongCalls);
  switch (phase_) {
    case Phase::kTryChosen:
      if (!has_tried) return;
      chosen_best_ = best_;
      phase_ = Phase::kTryOther;
      break;
    case Phase::kTryOther: {
      if (!has_tried && seconds < kMuchLonger * chosen_best_) return;
      const double kernel = chosen_ ? chosen_best_ : best_;
      const double slots = chosen_ ? best_ : chosen_best_;
      const bool is_faster = kernel < kFaster * slots;
      const bool is_confirmed = std::exchange(chosen_, is_faster) == is_faster;
      interval_ = is_confirmed ? std::min(2 * interval_, kSeldom) : kOften;
      phase_ = Phase::kGo;
      break;
    }
    case Phase::kGo:
      if (calls_ < interval_) return;
      phase_ = Phase::kTryChosen;
      break;
  }
  calls_ = 0;
  best_ = std::numeric_limits<double>::infinity();
}

}  // namespace ringcomm::shm
