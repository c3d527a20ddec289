#include "reduce/publish.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ringcomm {
namespace {

constexpr std::size_t kLine = 64;

// In bytes. To hand a line over takes as long as to write three. Up to kMostAtOnce, all lines are
// handed over: so many can wait without holding up the writes behind them. If there are more data,
// every third line is, an odd number because lines are fetched in pairs. Beyond kMostHandedOver
// none is, because nothing is gained.
constexpr std::size_t kMostAtOnce = 4 << 10;
constexpr std::size_t kEveryThird = 3 * kLine;
constexpr std::size_t kMostHandedOver = 16 << 10;

#if defined(__SSE2__)
// Bytes before the first line that begins there.
std::size_t before_line(const std::byte* at) {
  return (kLine - reinterpret_cast<std::uintptr_t>(at) % kLine) % kLine;
}
#endif

void hand_over(std::byte* to, const std::byte* from, std::size_t nbytes) {
#if defined(__SSE2__)
  std::size_t at = std::min(nbytes, before_line(to));
  std::memcpy(to, from, at);
  const std::size_t step = nbytes <= kMostAtOnce ? kLine : kEveryThird;
  for (std::size_t next = at; at + kLine <= nbytes; at += kLine) {
    std::memcpy(to + at, from + at, kLine);
    if (at != next) continue;
    // Moves the line to the cache that the cores share; nothing where a processor cannot.
    asm volatile("cldemote %0" : : "m"(to[at]));
    next += step;
  }
  std::memcpy(to + at, from + at, nbytes - at);
#else
  std::memcpy(to, from, nbytes);
#endif
}

void copy(StoreChoice::Stores stores, std::byte* to, const std::byte* from, std::size_t nbytes) {
  if (stores == StoreChoice::Stores::kStreaming) {
    stream(to, from, nbytes);
  } else {
    std::memcpy(to, from, nbytes);
  }
}

void carry_out(StoreChoice::Next next, std::byte* to, const std::byte* from, std::size_t nbytes,
               StoreChoice& stores) {
  if (!next.is_trial) return copy(next.stores, to, from, nbytes);
  const std::size_t tried = std::min(nbytes, StoreChoice::kTrial);
  const auto began = std::chrono::steady_clock::now();
  copy(next.stores, to, from, tried);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  stores.took(took.count() / static_cast<double>(tried));
  copy(stores.current(), to + tried, from + tried, nbytes - tried);
}

}  // namespace

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

void publish(void* to, const void* from, std::size_t nbytes, StoreChoice& stores) {
  carry_out(stores.next(nbytes), static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
            nbytes, stores);
}

void publish_message(void* to, const void* from, std::size_t nbytes, StoreChoice& stores) {
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  const StoreChoice::Next next = stores.next(nbytes);
  const bool is_cached = !next.is_trial && next.stores == StoreChoice::Stores::kCached;
  if (is_cached && nbytes <= kMostHandedOver) return hand_over(out, in, nbytes);
  carry_out(next, out, in, nbytes, stores);
}

void stream(void* to, const void* from, std::size_t nbytes) {
#if defined(__SSE2__)
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  const std::size_t before = std::min(nbytes, before_line(out));
  std::memcpy(out, in, before);
  const std::size_t end = before + (nbytes - before) / kLine * kLine;
  for (std::size_t at = before; at < end; at += kLine) {
    __m128i quarters[4];
    for (int k = 0; k < 4; ++k) {
      quarters[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at) + k);
    }
    // All of a line together, so that it leaves as a whole.
    for (int k = 0; k < 4; ++k) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + at) + k, quarters[k]);
    }
  }
  std::memcpy(out + end, in + end, nbytes - end);
  _mm_sfence();  // a release store alone would not wait for them
#else
  std::memcpy(to, from, nbytes);
#endif
}

}  // namespace ringcomm
