#include "plan/bounds.h"

#include <algorithm>
#include <string>
#include <utility>

#include "plan/matching.h"

namespace ringcomm {
namespace {

std::int64_t num_messages(const std::vector<Transfer>& transfers) {
  std::int64_t sum = 0;
  for (const Transfer& transfer : transfers) sum += std::max(transfer.num_chunks, 1);
  return sum;
}

void check(std::int64_t number, std::int64_t most, const std::string& holder,
           const std::string& what, const std::string& advice) {
  if (number <= most) return;
  throw PlanError(holder + " " + std::to_string(number) + " " + what + ", and plans may have " +
                  std::to_string(most) + "; " + advice);
}

void check_values(const Contract& contract) {
  const std::int64_t promised = contract.num_promised();
  if (promised <= kMostValues) return;
  const std::int64_t most_chunks =
      contract.num_chunks() == 0 ? 0 : kMostValues / (promised / contract.num_chunks());
  check(promised, kMostValues,
        std::string(to_string(contract.collective())) + " of " +
            std::to_string(contract.num_chunks()) + " chunks among " +
            std::to_string(contract.world_size()) + " ranks has",
        "results",
        most_chunks > 0 ? "at most " + std::to_string(most_chunks) + " chunks would do"
                        : "fewer ranks would do");
}

}  // namespace

void check_bounds(const Contract& contract, const std::vector<Plan>& plans) {
  check_values(contract);
  std::int64_t num_steps = 0, num_sent = 0, num_received = 0;
  for (int rank = 0; rank < std::ssize(plans); ++rank) {
    const Plan& plan = plans[rank];
    check_plan(plan, rank, contract.world_size(), contract.num_chunks());
    num_steps += std::ssize(plan.steps);
    for (const Step& step : plan.steps) {
      num_sent += num_messages(step.sends);
      num_received += num_messages(step.recvs);
    }
  }
  check(num_steps, kMostSteps, "the plans have", "steps", "fewer steps or ranks would do");
  for (const auto& [number, what] :
       {std::pair(num_sent, "chunks to send"), {num_received, "chunks to receive"}}) {
    check(number, kMostMessages, "the plans have", what,
          "fewer and larger chunks, or fewer ranks, would do");
  }
}

}  // namespace ringcomm
