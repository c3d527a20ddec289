// One rank's programs, each compiled when it is first wanted.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/call.h"
#include "core/selection.h"
#include "plan/algorithms.h"
#include "plan/bitwise.h"
#include "plan/program.h"

namespace ringcomm {

// A program, or why there is none. The fingerprint stands for what an id leaves open: a user's
// plans, the ranks' hosts. Ranks with the same ids and fingerprints have the same plans.
struct Prepared {
  static constexpr std::uint64_t kNoProgram = ~std::uint64_t{0};

  Program program;
  std::uint64_t fingerprint = 0;
  std::exception_ptr error;
};

class Programs {
 public:
  Programs(int rank, int world_size, Selection selection);

  // Sets the ranks' hosts, as in plan/algorithms.h, unless the selection has them. Called before
  // any use.
  void place(const std::vector<int>& host_of) {
    if (selection_.host_of.empty()) selection_.host_of = host_of;
  }

  const Selection& selection() const { return selection_; }

  // In a reproducible group, a plan that adds in another order is refused.
  const Prepared& find(const Call& call);

 private:
  Prepared prepare(const Call& call) const;
  std::vector<Plan> plans_of(Collective collective, AlgorithmId algorithm, int root) const;

  const int rank_;
  const int world_size_;
  Selection selection_;
  // By what a program depends on: the last is how the sums of a reproducible group are rounded.
  std::map<std::tuple<Collective, AlgorithmId, int, std::optional<Rounding>>, Prepared> prepared_;
};

}  // namespace ringcomm
