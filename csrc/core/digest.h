// A digest of a row of numbers: equal digests stand for equal numbers, to 64 bits of doubt. Each is
// mixed in by a multiplication and a shift, as MurmurHash's finalizer mixes: reversible, so that
// rows that differ in one number always differ in their digests.
#pragma once

#include <cstdint>

namespace ringcomm {

class Digest {
 public:
  void add(std::uint64_t number) {
    value_ = (value_ ^ number) * 0xff51afd7ed558ccdu;
    value_ ^= value_ >> 32;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0x9e3779b97f4a7c15u;
};

}  // namespace ringcomm
