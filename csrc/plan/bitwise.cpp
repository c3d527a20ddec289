#include "plan/bitwise.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "plan/rendezvous.h"
#include "plan/verify.h"

namespace ringcomm {
namespace {

// How the inputs of one step are added.
enum class Order : std::uint8_t {
  kLeftToRight,     // and rounded once
  kPairs,           // and rounded once
  kRoundedInPairs,  // and rounded each time: every sum is of two
};

constexpr int kMostNamed = 24;  // ranks and sums, of an expression that is shown
constexpr int kDeepest = 7;     // parentheses in each other, there

std::uint64_t hash_of(const std::vector<Symbol>& operands) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t hash = operands.size();
  for (const Symbol operand : operands) {
    hash = (hash ^ operand) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

// Sums of equally many operands change places where they are added to each other.
void sort_pairs(std::vector<Symbol>& operands) {
  const std::ptrdiff_t size = std::ssize(operands);
  for (std::ptrdiff_t width = 1; 2 * width <= size; width *= 2) {
    for (auto first = operands.begin(); operands.end() - first >= 2 * width; first += 2 * width) {
      const auto middle = first + width, last = middle + width;
      if (std::lexicographical_compare(middle, last, first, middle)) {
        std::swap_ranges(first, middle, middle);
      }
    }
  }
}

std::vector<Symbol> sorted(Symbol a, Symbol b) { return {std::min(a, b), std::max(a, b)}; }

// Symbols for sums as they are computed: equal expressions have equal symbols. Each is kept once,
// and compared as a whole, so that no two are mistaken for each other.
class Sums : public Symbols {
 public:
  explicit Sums(Order order) : order_(order) {}

  Symbol input(int rank) override {
    if (rank >= std::ssize(inputs_)) inputs_.resize(rank + 1, kNothing);
    if (inputs_[rank] == kNothing) {
      inputs_[rank] = static_cast<Symbol>(expressions_.size());
      expressions_.push_back({rank, 0, 0});
    }
    return inputs_[rank];
  }

  Symbol sum(const Addition& addition) override {
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
    return add(std::move(operands));
  }

  // All ranks' inputs, added in one step.
  Symbol canonical(int world_size) {
    std::vector<Symbol> inputs(world_size);
    for (int rank = 0; rank < world_size; ++rank) inputs[rank] = input(rank);
    return world_size == 1 ? inputs[0] : add(std::move(inputs));
  }

  bool is_input(Symbol symbol) const {
    return expressions_[symbol].first == expressions_[symbol].last;
  }
  // An input has none. The one with the lower rank is first of the first two.
  std::vector<Symbol> terms(Symbol symbol) const {
    const Expression& expression = expressions_[symbol];
    std::vector<Symbol> operands(operands_.begin() + expression.first,
                                 operands_.begin() + expression.last);
    if (!operands.empty() && lowest_rank(operands[0]) > lowest_rank(operands[1])) {
      std::swap(operands[0], operands[1]);
    }
    return operands;
  }

  int lowest_rank(Symbol symbol) const { return expressions_[symbol].lowest_rank; }

  // "(rank 0 + rank 1) + rank 2": what parentheses hold is added in one step, and rounded. Some
  // terms of a large sum are "...".
  std::string to_string(Symbol symbol) const {
    std::string text;
    int budget = kMostNamed;
    append(symbol, /*depth=*/0, budget, text);
    return text;
  }

 private:
  // An input, or a sum over operands_[first], ..., operands_[last-1].
  struct Expression {
    int lowest_rank;
    std::uint32_t first, last;
  };

  // As a + b is b + a, operands are put into an order that depends on nothing else.
  Symbol add(std::vector<Symbol> operands) {
    switch (order_) {
      case Order::kLeftToRight:
        if (operands[0] > operands[1]) std::swap(operands[0], operands[1]);
        break;
      case Order::kPairs:
        sort_pairs(operands);
        break;
      case Order::kRoundedInPairs:
        while (operands.size() > 2) {
          std::size_t kept = 0;
          for (std::size_t i = 0; i < operands.size(); i += 2) {
            operands[kept++] = i + 1 < operands.size()
                                   ? symbol_of(sorted(operands[i], operands[i + 1]))
                                   : operands[i];
          }
          operands.resize(kept);
        }
        return symbol_of(sorted(operands[0], operands[1]));
    }
    return symbol_of(operands);
  }

  Symbol symbol_of(const std::vector<Symbol>& operands) {
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
    int lowest = lowest_rank(operands[0]);
    for (const Symbol operand : operands) lowest = std::min(lowest, lowest_rank(operand));
    expressions_.push_back({lowest, first, static_cast<std::uint32_t>(operands_.size())});
    symbols_.emplace(hash, symbol);
    return symbol;
  }

  void append(Symbol symbol, int depth, int& budget, std::string& text) const {
    if (--budget < 0 || (depth > kDeepest && !is_input(symbol))) {
      text += "...";
      return;
    }
    if (is_input(symbol)) {
      text += "rank " + std::to_string(lowest_rank(symbol));
      return;
    }
    const std::vector<Symbol> operands = terms(symbol);
    if (depth > 0) text += "(";
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (i > 0) text += " + ";
      append(operands[i], depth + 1, budget, text);
      if (budget < 0) {
        if (i + 1 < operands.size() && !text.ends_with("...")) text += " + ...";
        break;
      }
    }
    if (depth > 0) text += ")";
  }

  const Order order_;
  std::vector<Expression> expressions_{{-1, 0, 0}};  // by symbol; its operands come before it
  std::vector<Symbol> operands_;
  std::unordered_multimap<std::uint64_t, Symbol> symbols_;  // of sums, by hash
  std::vector<Symbol> inputs_;                              // by rank
};

// A collective that is promised by the plans of all ranks, which are within bounds.
Contract contract_of(Collective collective, const std::vector<Plan>& plans, int root) {
  const int world_size = static_cast<int>(plans.size());
  check_root(root, world_size);
  const Contract contract(collective, world_size, plans[0].num_chunks, root);
  check_bounds(contract, plans);
  return contract;
}

// Plans, carried out on sums.
struct SymbolicExecution {
  SymbolicExecution(const Contract& contract, const std::vector<Plan>& plans, Order order)
      : traffic(match(
            contract.world_size(), [&](int rank) { return plans[rank]; },
            [](const Transfer&) { return true; })),
        followed(Followed::all(contract.num_chunks())),
        sums(order),
        rendezvous(contract, traffic.pairings, followed, sums) {
    rendezvous.run();
  }

  Symbol sum(int rank, int chunk) const { return rendezvous.contents(rank, chunk); }

  const Traffic traffic;
  const Followed followed;
  Sums sums;
  Rendezvous rendezvous;
};

// The sums that the table's chunks are and all that they are made of, and nothing else.
SumTable table_of(const Sums& sums, const std::vector<std::pair<int, Symbol>>& of_chunks) {
  Symbol last = 0;
  for (const auto& [chunk, symbol] : of_chunks) last = std::max(last, symbol);
  std::vector<bool> wanted(last + 1);
  for (const auto& [chunk, symbol] : of_chunks) wanted[symbol] = true;
  std::vector<bool> is_whole = wanted;
  for (Symbol symbol = last; symbol > kNothing; --symbol) {
    if (!wanted[symbol]) continue;
    for (const Symbol term : sums.terms(symbol)) wanted[term] = true;
  }
  SumTable table;
  std::vector<int> places(last + 1);
  for (Symbol symbol = 1; symbol <= last; ++symbol) {
    if (!wanted[symbol] || (sums.is_input(symbol) && !is_whole[symbol])) continue;
    places[symbol] = static_cast<int>(table.sums.size());
    std::vector<int>& terms = table.sums.emplace_back();
    if (sums.is_input(symbol)) terms.push_back(sums.lowest_rank(symbol));
    for (const Symbol term : sums.terms(symbol)) {
      terms.push_back(sums.is_input(term) ? sums.lowest_rank(term) : ~places[term]);
    }
  }
  for (const auto& [chunk, symbol] : of_chunks) table.of_chunks.emplace_back(chunk, places[symbol]);
  return table;
}

}  // namespace

std::string bitwise_difference(Collective collective, const std::vector<Plan>& plans, int root) {
  const Contract contract = contract_of(collective, plans, root);
  if (collective != Collective::kAllReduce) return "";  // no chunk is summed for two ranks
  const SymbolicExecution executed(contract, plans, Order::kLeftToRight);
  for (int chunk = 0; chunk < contract.num_chunks(); ++chunk) {
    const Symbol first = executed.sum(0, chunk);
    for (int rank = 1; rank < contract.world_size(); ++rank) {
      const Symbol other = executed.sum(rank, chunk);
      if (first == other) continue;
      return "rank 0 ends with " + executed.sums.to_string(first) + " in chunk " +
             std::to_string(chunk) + ", and rank " + std::to_string(rank) + " with " +
             executed.sums.to_string(other);
    }
  }
  return "";
}

std::string association_difference(Collective collective, const std::vector<Plan>& plans,
                                   Rounding rounding, int root) {
  const Contract contract = contract_of(collective, plans, root);
  if (!is_reduction(collective)) return "";
  SymbolicExecution executed(
      contract, plans,
      rounding == Rounding::kEveryAddition ? Order::kRoundedInPairs : Order::kPairs);
  const Symbol canonical = executed.sums.canonical(contract.world_size());
  std::optional<std::pair<int, int>> first;  // chunk, rank
  for (int rank = 0; rank < contract.world_size(); ++rank) {
    for (const int chunk : contract.promised_chunks(rank)) {
      if (executed.sum(rank, chunk) == canonical) continue;
      if (!first || chunk < first->first) first = {chunk, rank};
      break;
    }
  }
  if (!first) return "";
  const auto [chunk, rank] = *first;
  return "rank " + std::to_string(rank) + " ends with " +
         executed.sums.to_string(executed.sum(rank, chunk)) + " in chunk " + std::to_string(chunk) +
         ", and not with " + executed.sums.to_string(canonical);
}

SumTable sums_of_chunks(Collective collective, const std::vector<Plan>& plans,
                        std::optional<int> rank, int root) {
  const Contract contract = contract_of(collective, plans, root);
  if (!is_reduction(collective)) {
    throw std::invalid_argument(std::string(ringcomm::to_string(collective)) + " adds nothing");
  }
  if (rank) check_rank(*rank, contract.world_size());
  const SymbolicExecution executed(contract, plans, Order::kLeftToRight);
  std::vector<std::pair<int, Symbol>> of_chunks;
  const int last = rank ? *rank + 1 : contract.world_size();
  for (int of = rank.value_or(0); of < last; ++of) {
    for (const int chunk : contract.promised_chunks(of)) {
      of_chunks.emplace_back(chunk, executed.sum(of, chunk));
    }
    if (collective == Collective::kAllReduce) break;  // which promises the first rank all chunks
  }
  return table_of(executed.sums, of_chunks);
}

}  // namespace ringcomm
