#include "reduce/store_choice.h"

namespace ringcomm {

StoreChoice::Next StoreChoice::next(std::size_t nbytes) {
  if (nbytes < kLeast) return {Stores::kCached, false};
  if (until_trial_ > nbytes || nbytes < kLeastTried) {
    until_trial_ -= until_trial_ > nbytes ? nbytes : until_trial_;
    return {current_, false};
  }
  return {tries_streaming_ ? Stores::kStreaming : Stores::kCached, true};
}

void StoreChoice::took(double seconds_per_byte) {
  if (!tries_streaming_) {
    cached_ = seconds_per_byte;
    tries_streaming_ = true;
    return;
  }
  tries_streaming_ = false;
  const Stores better =
      cached_ > kMuchLonger * seconds_per_byte ? Stores::kStreaming : Stores::kCached;
  against_ = better == current_ ? 0 : against_ + 1;
  if (against_ == kTrialsToChange) {
    current_ = better;
    against_ = 0;
  }
  until_trial_ = against_ == 0 ? kSeldom : kOften;
}

}  // namespace ringcomm
