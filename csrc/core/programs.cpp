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

}  // namespace

Programs::Programs(int rank, int world_size, Selection selection)
    : rank_(rank), world_size_(world_size), selection_(std::move(selection)) {}

const Prepared& Programs::find(Collective collective, AlgorithmId algorithm, int root) {
  const auto key = std::make_tuple(collective, algorithm, root);
  const auto known = prepared_.find(key);
  if (known != prepared_.end()) return known->second;
  return prepared_.emplace(key, prepare(collective, algorithm, root)).first->second;
}

Prepared Programs::prepare(Collective collective, AlgorithmId id, int root) const {
  Prepared prepared;
  const int from = std::max(root, 0);
  try {
    if (id == kUsersPlans) {
      const std::vector<Plan> plans = selection_.choices.at(collective).plans(world_size_, from);
      if (static_cast<int>(plans.size()) != world_size_) {
        throw PlanError("there are " + std::to_string(plans.size()) + " plans for " +
                        std::to_string(world_size_) + " ranks");
      }
      verify(collective, plans, from);
      prepared.fingerprint = fingerprint_of(plans);
      prepared.program =
          compile(collective, world_size_, [&](int r) { return plans[r]; }, rank_, from);
    } else {
      const Algorithm& algorithm = algorithms()[id];
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
    prepared.error =
        std::make_exception_ptr(PlanError(std::string(to_string(collective)) + " by the plan \"" +
                                          name_of(selection_.choices, collective, id) + "\" on " +
                                          std::to_string(world_size_) + " ranks: " + error.what()));
  } catch (const std::invalid_argument& error) {
    prepared.error = make_error(ErrorKind::kInvalidArgument, error.what());
  }
  return prepared;
}

}  // namespace ringcomm
