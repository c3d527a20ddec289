// FNV-1a over numbers: equal digests stand for equal numbers, to 64 bits of doubt.
#pragma once

#include <cstdint>

namespace ringcomm {

class Digest {
 public:
  void add(std::uint64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ (number >> (8 * byte) & 0xff)) * 1099511628211u;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

}  // namespace ringcomm
