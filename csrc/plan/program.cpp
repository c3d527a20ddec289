#include "plan/program.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "plan/plan.h"
#include "plan/wiring.h"

namespace ringcomm {
namespace {

// Which actions complete a sum. As no contribution is counted twice, that is where as many ranks'
// contributions are in it as there are ranks.
std::vector<bool> completed_sums(const Wiring& wiring, int num_chunks) {
  const int world_size = wiring.world_size();
  std::vector<bool> completes(wiring.num_actions());
  std::vector<int> in_result(wiring.num_actions());
  std::vector<int> in_value(static_cast<std::size_t>(world_size) * num_chunks, 1);
  const bool ended = carry_out(wiring, wiring.num_actions(), [&](int action) {
    const Wiring::Outline& outline = wiring.outline(action);
    int& value =
        in_value[static_cast<std::size_t>(wiring.rank_of(action)) * num_chunks + outline.chunk];
    if (!wiring.sources(action).empty()) {
      std::int64_t sum = outline.reduce ? value : 0;
      for (const int source : wiring.sources(action)) sum += in_result[source];
      value = static_cast<int>(std::min<std::int64_t>(sum, world_size + 1));
    }
    in_result[action] = value;
    completes[action] = value == world_size && (outline.reduce || world_size == 1);
  });
  if (!ended) throw PlanError("the plans deadlock; verify says where");
  return completes;
}

int most_held(const Draft& draft) {
  std::vector<int> change(draft.num_steps + 1);
  for (const Held& held : draft.held) {
    ++change[held.recv_step + 1];
    if (held.last_step + 1 < static_cast<int>(change.size())) --change[held.last_step + 1];
  }
  int now = 0, most = 0;
  for (const int each : change) most = std::max(most, now += each);
  return most;
}

// What executors whose slices come in scratch go by.
void count_steps(const std::vector<Draft>& drafts, const std::vector<std::vector<int>>& steps,
                 Program& program) {
  program.in_lockstep = !steps.empty();
  const auto common = [&](std::size_t rank, int step) {
    return program.in_lockstep && step >= 0 ? steps[rank][step] : step;
  };
  for (std::size_t r = 0; r < drafts.size(); ++r) {
    program.num_steps = std::max(program.num_steps, common(r, drafts[r].num_steps - 1) + 1);
  }
  int most_in_window = 0, most_in_relay = 0;
  bool idles = false, passes_on = true;
  for (std::size_t r = 0; r < drafts.size(); ++r) {
    const Draft& draft = drafts[r];
    const int last = std::max(draft.last_adding_step, draft.last_scratch_step);
    program.num_sliced_steps = std::max(program.num_sliced_steps, common(r, last) + 1);
    program.max_sent = std::max(program.max_sent, draft.max_sent);
    int in_relay = 0;
    for (int s = 0; s < draft.num_steps; ++s) {
      program.max_added = std::max(program.max_added, draft.added[s]);
      most_in_window = std::max(most_in_window, draft.arriving[s]);
      in_relay += draft.arriving[s];
    }
    most_in_relay = std::max(most_in_relay, in_relay);
    most_in_window = std::max(most_in_window, most_held(draft));
    idles = idles || draft.num_busy_steps < program.num_steps;
    passes_on = passes_on && std::ranges::all_of(draft.held, [&](const Held& held) {
                  return common(r, held.last_step) - common(r, held.recv_step) <= 1;
                });
  }
  program.is_relay = program.in_lockstep && program.num_steps > 1 && idles && passes_on;
  program.scratch_per_slice = program.is_relay ? most_in_relay : most_in_window;
  if (program.is_relay || !program.in_lockstep) program.num_sliced_steps = program.num_steps;
}

void add_peers(const Wiring& wiring, int rank, Program& program) {
  std::vector<int> in_slot(program.num_slots, -1);  // the last action that wrote to it
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      Action& action = program.actions[i];
      const int own = wiring.first(rank) + static_cast<int>(i);
      if (action.to.empty()) continue;
      action.slot = wiring.publication(own) % program.num_slots;
      action.replaces = std::exchange(in_slot[action.slot], static_cast<int>(i));
    }
  }
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    Action& action = program.actions[i];
    const int own = wiring.first(rank) + static_cast<int>(i);
    for (std::size_t k = 0; k < action.from.size(); ++k) {
      Source& source = action.from[k];
      const int theirs = wiring.sources(own)[k];
      source.action = theirs - wiring.first(source.peer);
      source.slot = wiring.publication(theirs) % program.num_slots;
    }
    for (std::size_t k = 0; k < action.to.size(); ++k) {
      Reader& reader = action.to[k];
      reader.action = wiring.readers(own)[k] - wiring.first(reader.peer);
    }
  }
}

}  // namespace

Program compile(Collective collective, int world_size, const std::function<Plan(int rank)>& plan_of,
                int rank, int root) {
  check_rank(rank, world_size);
  Program program;
  program.num_chunks = plan_of(0).num_chunks;
  const Contract contract(collective, world_size, program.num_chunks, root);
  Wiring wiring;
  std::vector<Draft> drafts;  // of other ranks without their actions
  std::vector<int> num_steps;
  for (int r = 0; r < world_size; ++r) {
    const Plan plan = plan_of(r);
    check_plan(plan, r, world_size, program.num_chunks);
    drafts.push_back(draft(contract, plan, r));
    wiring.add(drafts[r].actions);
    num_steps.push_back(drafts[r].num_steps);
    if (r != rank) drafts[r].actions = {};
  }
  wiring.connect();

  program.num_slots = least_slots(wiring);
  const std::vector<std::vector<int>> steps = common_steps(num_steps, wiring);
  count_steps(drafts, steps, program);
  for (int r = 0; r < world_size; ++r) program.num_actions.push_back(wiring.num_actions(r));

  program.actions = std::move(drafts[rank].actions);
  program.num_scratch = drafts[rank].num_scratch;
  add_peers(wiring, rank, program);
  if (program.in_lockstep) {
    for (Action& action : program.actions) {
      if (action.recv_step >= 0) action.recv_step = steps[rank][action.recv_step];
      if (action.send_step >= 0) action.send_step = steps[rank][action.send_step];
    }
  }
  if (is_reduction(collective)) {
    const std::vector<bool> completes = completed_sums(wiring, program.num_chunks);
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      program.actions[i].finish = completes[wiring.first(rank) + static_cast<int>(i)];
    }
  }
  return program;
}

}  // namespace ringcomm
