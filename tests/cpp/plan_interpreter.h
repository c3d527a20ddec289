// What plans come to, to the bit, by doing what they say: step by step, chunk by chunk, element by
// element, with nothing fused.
//
// A buffer repeats its rank's pattern of kPeriod elements, from a phase of its block's own, so that
// few elements stand for all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"
#include "reduce/types.h"
#include "reference.h"

namespace interpreter {

using namespace ringcomm;

inline constexpr std::size_t kPeriod = 61;
using Elements = std::vector<std::uint64_t>;  // one period, by the element's place in its block

inline std::size_t phase(int block, std::size_t element) {
  return (static_cast<std::size_t>(block) * 17 + element) % kPeriod;
}

struct Problem {
  Collective collective;
  int world_size;
  int root;
  int num_blocks;
  std::vector<Plan> plans;
  std::vector<Reduce> reduces;     // by rank: the factors of premul_sum differ
  std::vector<Elements> patterns;  // by rank

  int num_chunks() const { return plans[0].num_chunks; }
  int block_of(int chunk) const { return chunk / (num_chunks() / num_blocks); }
};

class Interpreter {
 public:
  explicit Interpreter(const Problem& problem)
      : problem_(problem),
        contract_(problem.collective, problem.world_size, problem.num_chunks(), problem.root),
        values_(problem.world_size, std::vector<Value>(problem.num_chunks())),
        next_step_(problem.world_size),
        begun_(problem.world_size) {
    for (int r = 0; r < problem.world_size; ++r) {
      for (int c = 0; c < problem.num_chunks(); ++c) {
        if (!contract_.holds_before(r, c)) continue;
        Value& value = values_[r][c];
        value.num_contributions = 1;
        value.is_input = true;
        for (std::size_t i = 0; i < kPeriod; ++i) {
          value.elements.push_back(problem.patterns[r][phase(problem.block_of(c), i)]);
        }
      }
    }
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < problem_.world_size; ++r) progress = advance(r) || progress;
    }
    for (int r = 0; r < problem_.world_size; ++r) {
      if (next_step_[r] < steps(r).size()) throw std::runtime_error("the plans deadlock");
      // A rank alone sends nothing, and yet its input counts with its factor.
      for (int c = 0; c < problem_.num_chunks(); ++c) values_[r][c] = scaled_once(r, c);
    }
  }

  const Elements& result(int rank, int chunk) const { return values_[rank][chunk].elements; }

 private:
  struct Value {
    Elements elements;
    int num_contributions = 0;
    bool is_input = false;
  };

  const std::vector<Step>& steps(int r) const { return problem_.plans[r].steps; }

  bool advance(int r) {
    if (next_step_[r] == steps(r).size()) return false;
    const Step& step = steps(r)[next_step_[r]];
    if (!begun_[r]) {
      for (const Transfer& send : step.sends) {
        for (int i = 0; i < send.num_chunks; ++i) {
          mail_[{r, send.peer}].push_back(scaled_once(r, send.first_chunk + i));
        }
      }
      begun_[r] = true;
    }
    std::map<int, std::size_t> awaited;  // by peer
    for (const Transfer& recv : step.recvs) awaited[recv.peer] += recv.num_chunks;
    for (const auto& [peer, number] : awaited) {
      if (mail_[{peer, r}].size() < number) return false;
    }
    receive(r, step);
    begun_[r] = false;
    ++next_step_[r];
    return true;
  }

  // What a rank has, as others or its caller see it.
  Value scaled_once(int r, int chunk) const {
    Value value = values_[r][chunk];
    const Reduce& reduce = problem_.reduces[r];
    if (value.is_input && reduce.op == ReduceOp::kPremulSum) {
      for (std::uint64_t& element : value.elements) {
        element = reference::reduce(scaled(reduce, 0), {element});
      }
    }
    value.is_input = false;
    return value;
  }

  Reduction scaled(const Reduce& reduce, int input) const {
    return {.dtype = reduce.dtype,
            .op = reduce.op,
            .divisor = 1,
            .scaled_input = input,
            .factor = reduce.factor};
  }

  void receive(int r, const Step& step) {
    std::map<int, std::map<int, Value>> added;  // by chunk, by rank
    for (const Transfer& recv : step.recvs) {
      for (int c = recv.first_chunk; c < recv.first_chunk + recv.num_chunks; ++c) {
        std::deque<Value>& mail = mail_[{recv.peer, r}];
        if (recv.reduce) {
          added[c][recv.peer] = std::move(mail.front());
        } else {
          values_[r][c] = std::move(mail.front());
        }
        mail.pop_front();
      }
    }
    for (auto& [chunk, inputs] : added) {
      inputs[r] = values_[r][chunk];
      values_[r][chunk] = sum(r, inputs);
    }
  }

  Value sum(int r, const std::map<int, Value>& inputs) const {
    Value result{Elements(kPeriod), 0, false};
    int own = 0;
    for (const auto& [rank, value] : inputs) {
      if (rank < r) ++own;
      result.num_contributions += value.num_contributions;
    }
    const Reduce& reduce = problem_.reduces[r];
    const bool scales = reduce.op == ReduceOp::kPremulSum && inputs.at(r).is_input;
    Reduction reduction = scaled(reduce, scales ? own : -1);
    if (result.num_contributions == problem_.world_size) reduction.divisor = problem_.world_size;
    for (std::size_t i = 0; i < kPeriod; ++i) {
      std::vector<std::uint64_t> elements;
      for (const auto& [rank, value] : inputs) elements.push_back(value.elements[i]);
      result.elements[i] = reference::reduce(reduction, elements);
    }
    return result;
  }

  const Problem& problem_;
  const Contract contract_;
  std::vector<std::vector<Value>> values_;  // by rank and chunk
  std::map<std::pair<int, int>, std::deque<Value>> mail_;
  std::vector<std::size_t> next_step_;
  std::vector<bool> begun_;
};

}  // namespace interpreter
