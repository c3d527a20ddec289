#include "plan/bitwise.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "plan/rendezvous.h"
#include "plan/verify.h"

namespace ringcomm {
namespace {

// Symbols for sums as they are computed: equal expressions have equal symbols. Each is kept once,
// and compared as a whole, so that no two are mistaken for each other.
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

constexpr int kMostNamed = 24;  // ranks and sums, of an expression that is shown

std::uint64_t hash_of(const std::vector<Symbol>& operands) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t hash = operands.size();
  for (const Symbol operand : operands) {
    hash = (hash ^ operand) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

Symbol Sums::input(int rank) {
  if (rank >= std::ssize(inputs_)) inputs_.resize(rank + 1, kNothing);
  if (inputs_[rank] == kNothing) {
    inputs_[rank] = static_cast<Symbol>(expressions_.size());
    expressions_.push_back({rank, 0, 0});
  }
  return inputs_[rank];
}

Symbol Sums::sum(const Addition& addition) {
  std::vector<Symbol> operands;
  bool own_added = false;
  for (const Arrival& arrival : addition.added) {
    if (!own_added && addition.rank < arrival.sender) {
      operands.push_back(addition.held);
      own_added = true;
    }
    operands.push_back(arrival.symbol);
  }
  if (!own_added) operands.push_back(addition.held);
  if (operands[0] > operands[1]) std::swap(operands[0], operands[1]);
  return symbol_of(operands);
}

Symbol Sums::symbol_of(const std::vector<Symbol>& operands) {
  const std::uint64_t hash = hash_of(operands);
  const auto [begin, end] = symbols_.equal_range(hash);
  for (auto known = begin; known != end; ++known) {
    const Expression& expression = expressions_[known->second];
    if (std::equal(operands.begin(), operands.end(), operands_.begin() + expression.first,
                   operands_.begin() + expression.last)) {
      return known->second;
    }
  }
  const auto symbol = static_cast<Symbol>(expressions_.size());
  const auto first = static_cast<std::uint32_t>(operands_.size());
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  int lowest = expressions_[operands[0]].lowest_rank;
  for (const Symbol operand : operands) {
    lowest = std::min(lowest, expressions_[operand].lowest_rank);
  }
  expressions_.push_back({lowest, first, static_cast<std::uint32_t>(operands_.size())});
  symbols_.emplace(hash, symbol);
  return symbol;
}

std::string Sums::to_string(Symbol symbol) const {
  std::string text;
  int budget = kMostNamed;
  append(symbol, /*is_part=*/false, budget, text);
  return text;
}

// The budget bounds how deep this goes, too.
void Sums::append(Symbol symbol, bool is_part, int& budget, std::string& text) const {
  const Expression& expression = expressions_[symbol];
  if (--budget < 0) {
    text += "...";
    return;
  }
  if (expression.first == expression.last) {
    text += "rank " + std::to_string(expression.lowest_rank);
    return;
  }
  std::vector<Symbol> operands(operands_.begin() + expression.first,
                               operands_.begin() + expression.last);
  const auto lowest = [&](Symbol operand) { return expressions_[operand].lowest_rank; };
  if (lowest(operands[0]) > lowest(operands[1])) std::swap(operands[0], operands[1]);
  if (is_part) text += "(";
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) text += " + ";
    append(operands[i], /*is_part=*/true, budget, text);
    if (budget < 0) {
      if (i + 1 < operands.size() && !text.ends_with("...")) text += " + ...";
      break;
    }
  }
  if (is_part) text += ")";
}

}  // namespace

std::string BitwiseDifference::to_string() const {
  return "rank " + std::to_string(ranks[0]) + " ends with " + sums[0] + " in chunk " +
         std::to_string(chunk) + ", and rank " + std::to_string(ranks[1]) + " with " + sums[1];
}

std::optional<BitwiseDifference> bitwise_difference(Collective collective,
                                                    const std::vector<Plan>& plans, int root) {
  const int world_size = static_cast<int>(plans.size());
  check_root(root, world_size);
  const Contract contract(collective, world_size, plans[0].num_chunks, root);
  check_bounds(contract, plans);
  if (collective != Collective::kAllReduce)
    return std::nullopt;  // no chunk is summed for two ranks
  const Traffic traffic = match(
      world_size, [&](int rank) { return plans[rank]; }, [](const Transfer&) { return true; });
  Sums sums;
  const Followed followed = Followed::all(contract.num_chunks());
  Rendezvous rendezvous(contract, traffic.pairings, followed, sums);
  rendezvous.run();
  for (int chunk = 0; chunk < contract.num_chunks(); ++chunk) {
    const Symbol first = rendezvous.contents(0, chunk);
    for (int rank = 1; rank < world_size; ++rank) {
      const Symbol other = rendezvous.contents(rank, chunk);
      if (first == other) continue;
      return BitwiseDifference{chunk, {0, rank}, {sums.to_string(first), sums.to_string(other)}};
    }
  }
  return std::nullopt;
}

}  // namespace ringcomm
