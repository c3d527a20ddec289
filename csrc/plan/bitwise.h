// Whether all ranks end with the same bits.
//
// A sum of floating-point numbers depends on its parentheses. Where two ranks compute the sum of a
// chunk on their own, as recursive doubling has them do, they must put the same parentheses, or the
// ranks' results drift apart: parameters that data-parallel training keeps equal no longer are.
// Where one rank computes the sum and the others copy it, as in a ring, nothing can differ.
//
// The plans are carried out as for verify (plan/verify.h), with expressions in place of sets of
// ranks. That costs about as much.
//
// An executor adds what a rank receives in one step and what it holds in the order of the ranks,
// from left to right, in the type that it accumulates in, and rounds the result once, when it
// stores or sends it (csrc/shm/executor.cpp, perform). So a value is an input, or a sum over values
// that is rounded at its end:
//
//      in one step     rank 0 + rank 1 + rank 2         rounded once
//      in two          (rank 0 + rank 1) + rank 2       rounded in between, too
//
// Two values are the same bits for all inputs and types if their expressions are the same, but for
// the order of the first two operands of a sum, since a + b is b + a. What differs may still be
// the same bits: where a sum is exact, as of integers, or where the type of the elements is that of
// the accumulation, which rounds after every addition.
//
// What is said of a sum holds for avg, which divides where the sum is complete, before it is
// rounded, and for premul_sum, to which a contribution is rounded before it is added.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

// Two ranks that are promised the same chunk and end with different sums.
struct BitwiseDifference {
  int chunk;
  int ranks[2];
  std::string sums[2];

  // "rank 0 ends with rank 0 + (rank 1 + rank 2) in chunk 3, and rank 1 with ..."
  std::string to_string() const;
};

// Nothing if all ranks that are promised a chunk end with the same bits in it, as of every
// collective that only moves data. The plans are such that verify() accepts them; throws as that
// does, except for what ranks end with.
std::optional<BitwiseDifference> bitwise_difference(Collective collective,
                                                    const std::vector<Plan>& plans, int root = 0);

}  // namespace ringcomm
