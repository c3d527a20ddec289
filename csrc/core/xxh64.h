// The hash XXH64 with the seed 0: 64 bits of any number of bytes, given in any pieces.
//
// It is made to be fast, and to find changes that are accidents; an attacker could hide others. By
// Yann Collet, written as his specification has it:
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace ringcomm {

// Machines whose bytes are in the same order have the same values.
class Xxh64 {
 public:
  void add(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    length_ += bytes.size();
    if (held_ > 0) {
      const std::size_t taken = std::min(kStripe - held_, bytes.size());
      std::memcpy(rest_.data() + held_, bytes.data(), taken);
      held_ += taken;
      bytes = bytes.subspan(taken);
      if (held_ < kStripe) return;
      mix(rest_);
      held_ = 0;
    }
    const std::size_t whole = bytes.size() - bytes.size() % kStripe;
    mix(bytes.first(whole));
    bytes = bytes.subspan(whole);
    if (bytes.empty()) return;
    std::memcpy(rest_.data(), bytes.data(), bytes.size());
    held_ = bytes.size();
  }

  std::uint64_t value() const {
    std::uint64_t hash = k5;
    if (length_ >= kStripe) {
      const auto& [a, b, c, d] = lanes_;
      hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
      for (const std::uint64_t lane : lanes_) hash = (hash ^ mixed(0, lane)) * k1 + k4;
    }
    hash += length_;
    const std::byte* at = rest_.data();
    const std::byte* const end = at + held_;
    for (; at + 8 <= end; at += 8) {
      hash = std::rotl(hash ^ mixed(0, word<std::uint64_t>(at)), 27) * k1 + k4;
    }
    if (at + 4 <= end) {
      hash = std::rotl(hash ^ word<std::uint32_t>(at) * k1, 23) * k2 + k3;
      at += 4;
    }
    for (; at < end; ++at) {
      hash = std::rotl(hash ^ std::to_integer<std::uint64_t>(*at) * k5, 11) * k1;
    }
    hash = (hash ^ hash >> 33) * k2;
    hash = (hash ^ hash >> 29) * k3;
    return hash ^ hash >> 32;
  }

 private:
  static constexpr std::uint64_t k1 = 0x9E3779B185EBCA87, k2 = 0xC2B2AE3D27D4EB4F,
                                 k3 = 0x165667B19E3779F9, k4 = 0x85EBCA77C2B2AE63,
                                 k5 = 0x27D4EB2F165667C5;
  static constexpr std::size_t kStripe = 32;  // a word for each lane

  template <typename Word>
  static std::uint64_t word(const std::byte* at) {
    Word value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  static std::uint64_t mixed(std::uint64_t lane, std::uint64_t value) {
    return std::rotl(lane + value * k2, 31) * k1;
  }
  void mix(std::span<const std::byte> stripes) {
    auto lanes = lanes_;
    const std::byte* const end = stripes.data() + stripes.size();
    for (const std::byte* at = stripes.data(); at != end; at += kStripe) {
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        lanes[i] = mixed(lanes[i], word<std::uint64_t>(at + 8 * i));
      }
    }
    lanes_ = lanes;
  }

  std::array<std::uint64_t, 4> lanes_{k1 + k2, k2, 0, 0 - k1};
  std::array<std::byte, kStripe> rest_;  // that make no stripe yet
  std::size_t held_ = 0;
  std::uint64_t length_ = 0;
};

}  // namespace ringcomm
