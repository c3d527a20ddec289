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

void copy(StoreChoice::Stores stores, std::byte* to, const std::byte* from, std::size_t nbytes) {
  if (stores == StoreChoice::Stores::kStreaming) {
    stream(to, from, nbytes);
  } else {
    std::memcpy(to, from, nbytes);
  }
}

}  // namespace

void publish(void* to, const void* from, std::size_t nbytes, StoreChoice& stores) {
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  const StoreChoice::Next next = stores.next(nbytes);
  if (!next.is_trial) return copy(next.stores, out, in, nbytes);
  const std::size_t tried = std::min(nbytes, StoreChoice::kTrial);
  const auto began = std::chrono::steady_clock::now();
  copy(next.stores, out, in, tried);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  stores.took(took.count() / static_cast<double>(tried));
  copy(stores.current(), out + tried, in + tried, nbytes - tried);
}

void stream(void* to, const void* from, std::size_t nbytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  const std::size_t before =
      std::min(nbytes, (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine);
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
