// The first part of compiling: one rank's plan as actions that do not know their peers' yet.
#pragma once

#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/program.h"

namespace ringcomm {

// What becomes of a value that is no output: it is received in one step, and last used in another.
struct Held {
  int recv_step, last_step;
};

struct Draft {
  std::vector<Action> actions;  // what they hold of their peers is peer and message
  int num_scratch = 0;
  int num_steps = 0;
  int num_busy_steps = 0;  // with transfers
  int max_sent = 0;        // chunks, in one step
  int last_adding_step = -1;
  int last_scratch_step = -1;  // that sends or receives what is no output, or sends addends
  std::vector<int> added;      // by step: slices that are added
  std::vector<int> arriving;   // and all those that must not come right into the output
  std::vector<Held> held;
};

// Throws PlanError where the rank sends, or adds to, what it does not have.
Draft draft(const Contract& contract, const Plan& plan, int rank);

}  // namespace ringcomm
