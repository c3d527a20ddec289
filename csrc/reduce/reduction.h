// What a reduction computes: of one pass over some inputs, and among the ranks of a collective.
#pragma once

#include "reduce/types.h"

namespace ringcomm {

// One elementwise reduction
//
//   out[i] = round( finish( in[0][i] op in[1][i] op ... op in[n-1][i] ) )
//
// evaluated from left to right in the accumulation type: float32 for 16- and 8-bit floats, the
// type itself otherwise. Integers wrap around, but for avg, which adds them up in a type that holds
// every sum. -0 is less than +0, and two inputs give the same bits in either order, but for the
// sign and payload of a NaN. Pointers may have any alignment; an output may be one of the inputs,
// and must not overlap them in any other way.
struct Reduction {
  DType dtype;
  ReduceOp op;
  // avg divides by this once, after the last addition (integers truncate toward zero). 1 leaves
  // the sum as it is: partial sums pass 1, the last addition passes the world size.
  int divisor = 1;
  // premul_sum multiplies input `scaled_input` by `factor` in the accumulation type and rounds the
  // product to the dtype before it is added: a rank's own contribution has the bits that the other
  // ranks receive. -1: no input is scaled, because the others arrive scaled already.
  int scaled_input = -1;
  double factor = 1.0;
};

// How a collective combines the values of all ranks.
struct Reduce {
  DType dtype;
  ReduceOp op;
  double factor = 1.0;  // premul_sum: what this rank's input is multiplied by
  UsersDType users = {};
};

// The reduction among world_size ranks, for those that add last.
constexpr Reduction reduction_of(const Reduce& reduce, int world_size) {
  Reduction reduction{.dtype = reduce.dtype, .op = reduce.op};
  if (reduce.op == ReduceOp::kAvg) reduction.divisor = world_size;
  if (reduce.op == ReduceOp::kPremulSum) reduction.factor = reduce.factor;
  return reduction;
}

// The op to carry out: avg with nothing to divide and premul_sum with nothing to scale are sums.
constexpr ReduceOp effective_op(const Reduction& reduction) {
  const bool is_sum = (reduction.op == ReduceOp::kAvg && reduction.divisor <= 1) ||
                      (reduction.op == ReduceOp::kPremulSum && reduction.scaled_input < 0);
  return is_sum ? ReduceOp::kSum : reduction.op;
}

}  // namespace ringcomm
