// Whether all ranks end with the same bits.
//
// A sum of floating-point numbers depends on its parentheses. Where two ranks compute the sum of a
// chunk on their own, as recursive doubling has them do, they must put the same parentheses, or the
// ranks' results drift apart: parameters that data-parallel training keeps equal no longer are.
// Where one rank computes the sum and the others copy it, as in a ring, nothing can differ.
//
// The plans are carried out as for verify (plan/verify.h), with expressions in place of sets of
// ranks (plan/sums.h). That costs about as much.
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

// Two ranks that are promised the same chunk and end with different sums, as in plan/sums.h.
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
