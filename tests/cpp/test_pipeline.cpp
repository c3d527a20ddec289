// Pipelines: the order in which slices go through the steps of a plan is itself a plan that can be
// proven.
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/pipeline.h"
#include "plan/verify.h"
#include "programs.h"

namespace {

using namespace ringcomm;

const std::vector<Collective> kSliced = {
    Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce,
    Collective::kAllGather, Collective::kBroadcast,
};

int longest(const std::vector<Plan>& plans) {
  std::size_t steps = 0;
  for (const Plan& plan : plans) steps = std::max(steps, plan.steps.size());
  return static_cast<int>(steps);
}

}  // namespace

TEST(every_slice_goes_through_every_step_once_and_in_order) {
  for (int num_chunks : {1, 4}) {
    for (int num_steps = 0; num_steps < 7; ++num_steps) {
      for (int num_slices = 0; num_slices < 9; ++num_slices) {
        for (int in_flight = 2; in_flight < 6; ++in_flight) {
          const Pipeline p = Pipeline::of(num_chunks, num_steps, num_slices, in_flight);
          std::set<std::pair<int, int>> seen;
          std::vector<int> last(num_slices, -p.delay);
          for (int tick = 0; tick < p.num_ticks(); ++tick) {
            p.at(tick, [&](int step, int slice) {
              CHECK(seen.insert({step, slice}).second);
              CHECK(step == 0 || seen.contains({step - 1, slice}));
              CHECK(tick - last[slice] >= p.delay || step == 0);
              last[slice] = tick;
            });
          }
          CHECK_EQ(seen.size(), static_cast<std::size_t>(num_steps) * num_slices);
        }
      }
    }
  }
}

TEST(pipelined_plans_are_proven) {
  for (const Collective collective : kSliced) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
      for (int n = 1; n <= 8; ++n) {
        const int root = n / 2;
        std::vector<Plan> plans;
        for (int r = 0; r < n; ++r) plans.push_back(make_plan(collective, algorithm, r, n, root));
        for (int num_slices : {1, 2, 3, 7}) {
          for (int in_flight : {2, 3, 4}) {
            const Pipeline pipeline =
                Pipeline::of(plans[0].num_chunks, longest(plans), num_slices, in_flight);
            std::vector<Plan> sliced;
            for (const Plan& plan : plans) sliced.push_back(pipelined(plan, pipeline));
            verify(collective, sliced, root);
          }
        }
      }
    }
  }
}
