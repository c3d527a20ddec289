#include "shm/copy_choice.h"

#include <algorithm>
#include <utility>

namespace ringcomm::shm {

void CopyChoice::took(double seconds) {
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
