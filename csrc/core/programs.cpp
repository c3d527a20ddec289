#include "core/programs.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/call.h"
#include "core/status.h"
#include "plan/plan.h"
#include "plan/verify.h"

namespace ringcomm {
namespace {

void add(Digest& digest, const std::vector<Transfer>& transfers) {
  digest.add(transfers.size());
  for (const Transfer& t : transfers) {
    for (const int value : {t.peer, t.first_chunk, t.num_chunks, int{t.reduce}}) digest.add(value);
  }
}

std::uint64_t fingerprint_of(const std::vector<Plan>& plans) {
  Digest digest;
  for (const Plan& plan : plans) {
    digest.add(plan.num_chunks);
    digest.add(plan.steps.size());
    for (const Step& step : plan.steps) {
      add(digest, step.sends);
      add(digest, step.recvs);
    }
  }
  return digest.value();
}

// How the sums of a reproducible group's call are rounded.
std::optional<Rounding> rounding_of(const Call& call, const Selection& selection) {
  if (selection.reproducible == Reproducible::kOff || !has_rounded_sums(call)) return std::nullopt;
  return element_size(call.dtype) < 4 ? Rounding::kEveryStep : Rounding::kEveryAddition;
}

void check_reproducible(Collective collective, const std::vector<Plan>& plans, Rounding rounding,
                        int root) {
  const std::string difference = association_difference(collective, plans, rounding, root);
  if (difference.empty()) return;
  const char* const wanted = rounding == Rounding::kEveryStep
                                 ? "adds floats of 16 and 8 bits in one step, which rounds once"
                                 : "adds pairs of ranks, then pairs of these";
  throw PlanError("a group with reproducible=\"ranks\" " + std::string(wanted) + ", and " +
                  difference);
}

}  // namespace

Programs::Programs(int rank, int world_size, Selection selection)
    : rank_(rank), world_size_(world_size), selection_(std::move(selection)) {}

const Prepared& Programs::find(const Call& call) {
  const auto key = std::make_tuple(call.collective, AlgorithmId{call.algorithm}, call.root,
                                   rounding_of(call, selection_));
  const auto known = prepared_.find(key);
  if (known != prepared_.end()) return known->second;
  return prepared_.emplace(key, prepare(call)).first->second;
}

std::vector<Plan> Programs::plans_of(Collective collective, AlgorithmId id, int root) const {
  std::vector<Plan> plans;
  if (id == kUsersPlans) {
    plans = selection_.choices.at(collective).plans(world_size_, root);
    if (static_cast<int>(plans.size()) != world_size_) {
      throw PlanError("there are " + std::to_string(plans.size()) + " plans for " +
                      std::to_string(world_size_) + " ranks");
    }
  } else {
    const Setting setting{world_size_, root, selection_.host_of};
    for (int r = 0; r < world_size_; ++r) plans.push_back(algorithms()[id].generate(r, setting));
  }
  return plans;
}

Prepared Programs::prepare(const Call& call) const {
  Prepared prepared;
  const Collective collective = call.collective;
  const AlgorithmId id = call.algorithm;
  const int from = std::max(call.root, 0);
  const auto wrong_plan = [&](const char* why) {
    return std::make_exception_ptr(
        PlanError(std::string(to_string(collective)) + " by the plan \"" +
                  name_of(selection_.choices, collective, id) + "\" on " +
                  std::to_string(world_size_) + " ranks: " + why));
  };
  try {
    const std::optional<Rounding> rounding = rounding_of(call, selection_);
    if (id == kUsersPlans) {
      const std::vector<Plan> plans = plans_of(collective, id, from);
      verify(collective, plans, from);
      if (rounding) check_reproducible(collective, plans, *rounding, from);
      prepared.fingerprint = fingerprint_of(plans);
      prepared.program =
          compile(collective, world_size_, [&](int r) { return plans[r]; }, rank_, from);
    } else {
      const Algorithm& algorithm = algorithms()[id];
      if (rounding && selection_.choices.contains(collective)) {
        check_reproducible(collective, plans_of(collective, id, from), *rounding, from);
      }
      const Setting setting{world_size_, from, selection_.host_of};
      if (algorithm.two_level) {
        Digest digest;
        for (const int host : setting.host_of) digest.add(host);
        prepared.fingerprint = digest.value();
      }
      prepared.program = compile(
          collective, world_size_, [&](int r) { return algorithm.generate(r, setting); }, rank_,
          from);
    }
  } catch (const PlanError& error) {
    prepared.error = wrong_plan(error.what());
  } catch (const std::invalid_argument& error) {
    // A plan of a user may have a number of chunks that its collective cannot have.
    prepared.error = id == kUsersPlans ? wrong_plan(error.what())
                                       : make_error(ErrorKind::kInvalidArgument, error.what());
  }
  return prepared;
}

}  // namespace ringcomm
