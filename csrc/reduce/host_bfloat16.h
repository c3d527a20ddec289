// bfloat16 to float32 and back, in loops that the compiler vectorises: two elements at a time, in
// the halves of a word. So no vector has to be widened, or narrowed again, which would move its
// parts. The elements in lower halves come first, then those in upper halves, 32 at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/small_float.h"

namespace ringcomm::RINGCOMM_ISA {
namespace {

struct BFloat16Vector {
  static constexpr std::size_t kWidth = 32;

  RINGCOMM_INLINE void load(float* values, const std::byte* in) {
    std::uint32_t words[kWords];
    std::memcpy(words, in, sizeof(words));
    for (std::size_t i = 0; i < kWords; ++i) {
      values[i] = BFloat16::decode(words[i]);
      values[kWords + i] = float_of(words[i] & kUpper);
    }
  }

  RINGCOMM_INLINE void store(std::byte* out, const float* values) {
    std::uint32_t words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint32_t lower = BFloat16::rounded(values[i]);
      const std::uint32_t upper = BFloat16::rounded(values[kWords + i]);
      words[i] = lower >> 16 | (upper & kUpper);
    }
    std::memcpy(out, words, sizeof(words));
  }

 private:
  static constexpr std::size_t kWords = kWidth / 2;
  static constexpr std::uint32_t kUpper = 0xffff0000;
};

}  // namespace
}  // namespace ringcomm::RINGCOMM_ISA
