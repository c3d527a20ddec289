// Pipelines: the order in which slices go through the steps of a plan is itself a plan that can be
// proven.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/algorithms.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "plan/verify.h"

namespace {

using namespace ringcomm;

Program program_of(const Algorithm& algorithm, const Setting& setting, int rank = 0) {
  return compile(
      algorithm.collective, setting.world_size,
      [&](int r) { return algorithm.generate(r, setting); }, rank, setting.root);
}
Program program_of(Collective collective, const char* name, int world_size) {
  return program_of(*find_algorithm(collective, name), {world_size});
}

Program shape(bool is_relay, int num_steps, int num_sliced_steps, int max_added) {
  Program program;
  program.is_relay = is_relay;
  program.num_steps = num_steps;
  program.num_sliced_steps = num_sliced_steps;
  program.max_added = max_added;
  return program;
}

// A program as a plan again, by its common steps.
Plan plan_of(const Program& program) {
  Plan plan{program.num_chunks, std::vector<Step>(program.num_steps)};
  for (const Action& action : program.actions) {
    for (const Source& source : action.from) {
      plan.steps[action.recv_step].recvs.push_back({source.peer, action.chunk, 1, action.reduce});
    }
    for (const Reader& reader : action.to) {
      plan.steps[action.send_step].sends.push_back({reader.peer, action.chunk, 1});
    }
  }
  for (Step& step : plan.steps) {
    std::ranges::sort(step.sends, {}, &Transfer::first_chunk);
    std::ranges::sort(step.recvs, {}, &Transfer::first_chunk);
  }
  return plan;
}

// One rank's plan, by common steps, with its slices as chunks and its ticks as steps: slice k of
// chunk c becomes chunk c * num_slices + k.
Plan pipelined(const Plan& plan, const Pipeline& pipeline) {
  Plan result{plan.num_chunks * pipeline.num_slices, {}};
  for (int tick = 0; tick < pipeline.num_ticks(); ++tick) {
    Step& at_tick = result.steps.emplace_back();
    pipeline.at(tick, [&](int step, int first_slice, int num_slices) {
      if (step >= static_cast<int>(plan.steps.size())) return;
      const auto add = [&](const std::vector<Transfer>& transfers, std::vector<Transfer>& to) {
        for (const Transfer& transfer : transfers) {
          for (int c = transfer.first_chunk; c < transfer.first_chunk + transfer.num_chunks; ++c) {
            to.push_back({transfer.peer, c * pipeline.num_slices + first_slice, num_slices,
                          transfer.reduce});
          }
        }
      };
      add(plan.steps[step].sends, at_tick.sends);
      add(plan.steps[step].recvs, at_tick.recvs);
    });
  }
  return result;
}

void check_order(const Pipeline& p) {
  std::set<std::pair<int, int>> seen;
  std::vector<int> last(p.num_slices, -p.delay);
  for (int tick = 0; tick < p.num_ticks(); ++tick) {
    p.at(tick, [&](int step, int first_slice, int num_slices) {
      const bool sliced = step < p.num_sliced_steps;
      CHECK_EQ(num_slices, sliced ? 1 : p.num_slices);
      for (int slice = first_slice; slice < first_slice + num_slices; ++slice) {
        CHECK(seen.insert({step, slice}).second);
        CHECK(step == 0 || seen.contains({step - 1, slice}));
        CHECK(tick - last[slice] >= (sliced ? p.delay : 1) || step == 0);
        last[slice] = tick;
      }
    });
  }
  CHECK_EQ(seen.size(), static_cast<std::size_t>(p.num_steps) * p.num_slices);
}

}  // namespace

TEST(every_slice_goes_through_every_step_once_and_in_order) {
  for (const bool is_relay : {false, true}) {
    for (int num_steps = 0; num_steps < 7; ++num_steps) {
      for (int num_sliced_steps = 0; num_sliced_steps <= num_steps; ++num_sliced_steps) {
        const Program program = shape(is_relay, num_steps, num_sliced_steps, num_steps % 2);
        for (int num_slices = 0; num_slices < 9; ++num_slices) {
          for (int in_flight = 2; in_flight < 6; ++in_flight) {
            check_order(Pipeline::of(program, num_slices, in_flight));
          }
        }
      }
    }
  }
}

TEST(an_all_reduce_takes_a_tick_for_each_slice_that_is_added_and_one_for_each_step_that_copies) {
  const Program ring = program_of(Collective::kAllReduce, "ring", 4);
  CHECK_EQ(Pipeline::of(ring, 6, 3).num_ticks(), 3 * 6 + 3);
  const Program direct = program_of(Collective::kAllReduce, "direct", 4);
  CHECK_EQ(Pipeline::of(direct, 6, 3).num_ticks(), 6 + 1);
}

TEST(what_only_moves_is_delayed_by_one_tick_along_a_chain_and_sums_by_two) {
  const Program broadcast = program_of(Collective::kBroadcast, "chain", 4);
  CHECK_EQ(Pipeline::of(broadcast, 6, 3).num_ticks(), 6 + (broadcast.num_steps - 1));
  const Program reduce = program_of(Collective::kReduce, "chain", 4);
  CHECK_EQ(Pipeline::of(reduce, 6, 3).num_ticks(), 6 + 2 * (reduce.num_steps - 1));
}

TEST(pipelined_plans_are_proven) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier ||
        algorithm.collective == Collective::kAllToAll) {
      continue;
    }
    for (int n = 1; n <= 8; ++n) {
      const Setting setting{n, n / 2};
      std::vector<Plan> plans;
      for (int r = 0; r < n; ++r) plans.push_back(plan_of(program_of(algorithm, setting, r)));
      const Program program = program_of(algorithm, setting);
      CHECK(program.in_lockstep);
      for (int num_slices : {1, 2, 3, 7}) {
        for (int in_flight : {2, 3, 4}) {
          const Pipeline pipeline = Pipeline::of(program, num_slices, in_flight);
          std::vector<Plan> sliced;
          for (const Plan& plan : plans) sliced.push_back(pipelined(plan, pipeline));
          verify(algorithm.collective, sliced, setting.root);
        }
      }
    }
  }
}
