// What chunks hold when plans are carried out on symbols instead of data (plan/rendezvous.h).
//
// A symbol is a number that stands for a value, equal numbers for equal values. What a value is
// depends on the question: the set of ranks whose contributions are in it (plan/contributions.h),
// or the sum that it is, with its parentheses (plan/sums.h).
#pragma once

#include <cstdint>
#include <span>

namespace ringcomm {

using Symbol = std::uint32_t;
inline constexpr Symbol kNothing = 0;  // what is unspecified

// A chunk that a rank has received in its current step.
struct Arrival {
  int chunk;
  int sender;
  bool adds;
  Symbol symbol;
};

// What a rank adds to a chunk in one step: all these arrivals, which are in the order of their
// senders, to what it holds.
struct Addition {
  int rank, step, chunk;
  Symbol held;
  std::span<const Arrival> added;
};

class Symbols {
 public:
  virtual ~Symbols() = default;

  // A rank's own contribution.
  virtual Symbol input(int rank) = 0;
  // Throws PlanError for what must not be added.
  virtual Symbol sum(const Addition& addition) = 0;
};

}  // namespace ringcomm
