#include "reduce/store_choice.h"

#include <algorithm>

namespace ringcomm {

StoreChoice::Next StoreChoice::next(std::size_t nbytes) {
  if (nbytes < kLeast) return {Stores::kCached, false};
  if (until_trial_ > nbytes || nbytes < kLeastTried) {
    until_trial_ -= std::min(until_trial_, nbytes);
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
  // A clock may be too coarse to see anything.
  const double longer = seconds_per_byte > 0 ? cached_ / seconds_per_byte : 0;
  const double evidence = std::min(longer / (cached_ < kSlow ? kMuchLonger : kLonger), kMost);
  evidence_ += kNewest * (evidence - evidence_);
  current_ = stores_for(evidence_);
  interval_ = stores_for(evidence) == current_ ? std::min(2 * interval_, kSeldom) : kOften;
  until_trial_ = interval_;
}

StoreChoice::Stores StoreChoice::stores_for(double evidence) {
  return evidence > 1 ? Stores::kStreaming : Stores::kCached;
}

}  // namespace ringcomm
