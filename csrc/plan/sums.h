// Symbols for sums as they are computed: with their parentheses.
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
// the order of the first two operands of a sum, since a + b is b + a. Equal expressions have equal
// symbols: each is kept once, and compared as a whole, so that no two are mistaken for each other.
// What differs may still be the same bits: where a sum is exact, as of integers, or where the type
// of the elements is that of the accumulation, which rounds after every addition.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/symbols.h"

namespace ringcomm {

class Sums : public Symbols {
 public:
  Symbol input(int rank) override;
  Symbol sum(const Addition& addition) override;

  // "(rank 0 + rank 1) + rank 2": what parentheses hold is added in one step, and rounded. Some
  // terms of a large sum are "...".
  std::string to_string(Symbol symbol) const;

 private:
  // An input, or a sum over operands_[first], ..., operands_[last-1].
  struct Expression {
    int lowest_rank;
    std::uint32_t first, last;
  };

  Symbol symbol_of(const std::vector<Symbol>& operands);
  void append(Symbol symbol, bool is_part, int& budget, std::string& text) const;

  std::vector<Expression> expressions_{{-1, 0, 0}};  // by symbol
  std::vector<Symbol> operands_;
  std::unordered_multimap<std::uint64_t, Symbol> symbols_;  // of sums, by hash
  std::vector<Symbol> inputs_;                              // by rank
};

}  // namespace ringcomm
