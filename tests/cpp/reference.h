// A scalar reference for the reductions, written for obviousness and not with the project's
// functors: small floats are looked up in the sorted list of all their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/types.h"

namespace reference {

using ringcomm::DType;
using ringcomm::ReduceOp;
using ringcomm::Reduction;

// A floating type of up to 16 bits: what every code means, and which code is nearest a number.
class FloatTable {
 public:
  FloatTable(int exponent_bits, int mantissa_bits, bool has_infinity);

  double decode(unsigned code) const;
  unsigned encode(double value) const;

 private:
  unsigned sign_bit_;
  bool has_infinity_;
  std::vector<double> magnitudes_;
  double overflow_;  // where rounding to the next value, if there were one, would begin
};

const FloatTable& float_table(DType dtype);

std::uint64_t read_bits(const void* data, std::size_t nbytes);

double to_double(DType dtype, std::uint64_t bits);
std::uint64_t from_double(DType dtype, double value);

// The bits of one result, from the bits of one element of every input.
std::uint64_t reduce(const Reduction& r, const std::vector<std::uint64_t>& values);

// Equal bits, where any NaN equals any other.
bool same(DType dtype, std::uint64_t a, std::uint64_t b);

}  // namespace reference
