// Which sums ranks end with: whether all have the same bits, and whether these are the same for
// every reproducible plan.
//
// A sum of floating-point numbers depends on its parentheses. Where two ranks compute the sum of a
// chunk on their own, as recursive doubling has them do, they must put the same parentheses, or the
// ranks' results drift apart: parameters that data-parallel training keeps equal no longer are.
// Where one rank computes the sum and the others copy it, as in a ring, nothing can differ.
//
// The plans are carried out as for verify (plan/verify.h), with expressions in place of sets of
// ranks. That costs about as much.
//
// An executor adds what a rank receives in one step and what it holds in the order of the ranks, in
// the type that it accumulates in, and rounds the result once, when it stores or sends it
// (csrc/shm/executor.cpp, perform). So a value is an input, or a sum over values that is rounded at
// its end:
//
//      in one step     rank 0 + rank 1 + rank 2         rounded once
//      in two          (rank 0 + rank 1) + rank 2       rounded in between, too
//
// Two values are the same bits for all inputs and types if their expressions are the same, but for
// the order of the first two operands of a sum, since a + b is b + a. What differs may still be
// the same bits: where a sum is exact, as of integers, or where the type of the elements is that of
// the accumulation, which rounds after every addition.
//
// What comes together in one step is added in pairs: adjacent ones, then adjacent sums; an odd last
// one goes up as it is. The canonical sum is that of all ranks in one step:
//
//      5 ranks     ((0 + 1) + (2 + 3)) + 4
//      6 ranks     ((0 + 1) + (2 + 3)) + (4 + 5)
//      7 ranks     ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
//
// A plan is reproducible if every sum that it promises has the bits of this one. How much that asks
// of it depends on when sums are rounded to the type of the elements (Rounding): with every
// addition, several steps may build the same tree; with every step, one step must add all. Integers
// ask for nothing, as their sums are exact.
//
// What is said of a sum holds for avg, which divides where the sum is complete, before it is
// rounded, and for premul_sum, to which a contribution is rounded before it is added.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

// Empty if all ranks that are promised a chunk end with the same bits in it, as of every
// collective that only moves data. Otherwise two ranks that are promised the same chunk and end
// with different sums: "rank 0 ends with rank 0 + (rank 1 + rank 2) in chunk 3, and rank 1 with
// ...". The plans are such that verify() accepts them; throws as that does, except for what ranks
// end with.
std::string bitwise_difference(Collective collective, const std::vector<Plan>& plans, int root = 0);

// When the sum of a step is rounded to the type of the elements.
enum class Rounding : std::uint8_t {
  kEveryAddition,  // float64, float32: what they are added in is their own type
  kEveryStep,      // floats of 16 and 8 bits, which are added in float32
};

// Empty if the plans are reproducible: every promised sum is the canonical one, as in every
// collective that only moves data. Otherwise the first chunk that is not, its first rank, and the
// two sums, in which parentheses hold what is rounded: "rank 2 ends with rank 0 + (rank 1 + rank 2)
// in chunk 0, and not with (rank 0 + rank 1) + rank 2". The plans are such that verify() accepts
// them; throws as bitwise_difference.
std::string association_difference(Collective collective, const std::vector<Plan>& plans,
                                   Rounding rounding, int root = 0);

// The sums that chunks are. A sum has the terms that are added to it in one step, in the order of
// their ranks; of the first two, the lower rank comes first. A term t >= 0 is rank t's input, and
// ~t the place of an earlier sum. An input that is no part of a sum is a sum of one term.
struct SumTable {
  std::vector<std::vector<int>> sums;          // equal ones are one
  std::vector<std::pair<int, int>> of_chunks;  // chunk, and the place of its sum
};

// What `rank` ends with in each chunk that it is promised; without a rank, what the first rank ends
// with that is promised the chunk. The plans are such that verify() accepts them; throws as
// bitwise_difference, and std::invalid_argument for a rank outside of the group and for a
// collective that adds nothing.
SumTable sums_of_chunks(Collective collective, const std::vector<Plan>& plans,
                        std::optional<int> rank = std::nullopt, int root = 0);

}  // namespace ringcomm
