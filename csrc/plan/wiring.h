// How plans become programs: first each rank's plan becomes actions that do not know their peers'
// yet, its draft. Then the actions of all ranks are connected: which action reads what another one
// publishes, which steps of the ranks are therefore one, and how many slots an outbox needs.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/program.h"

namespace ringcomm {

// ---- A draft ------------------------------------------------------------------------------------

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

// ---- The connections ----------------------------------------------------------------------------

// Actions of all ranks are numbered together, rank after rank. Every rank keeps this for the whole
// group, so it is small: a few numbers for each action.
class Wiring {
 public:
  // The next rank's.
  void add(const std::vector<Action>& actions);
  // Pairs the messages of all ranks. Throws PlanError for a send without a receive, and the
  // reverse.
  void connect();

  int world_size() const { return static_cast<int>(first_.size()) - 1; }
  int num_actions() const { return first_.back(); }
  int num_actions(int rank) const { return first_[rank + 1] - first_[rank]; }
  int first(int rank) const { return first_[rank]; }
  int rank_of(int action) const;

  // As in Action.
  struct Outline {
    int chunk;
    int recv_step, send_step;
    bool reduce;
  };
  const Outline& outline(int action) const { return outlines_[action]; }

  // In the order of Action::from and Action::to.
  std::span<const int> sources(int action) const { return of(source_, first_source_, action); }
  std::span<const int> readers(int action) const { return of(reader_, first_reader_, action); }
  bool publishes(int action) const { return first_reader_[action] < first_reader_[action + 1]; }
  // How many actions of the same rank publish something before this one does.
  int publication(int action) const { return publication_[action]; }

 private:
  // One end of a message, and its place in source_ or reader_.
  struct End {
    int sender, receiver, message;
    int action;
    int at;
  };

  static std::span<const int> of(const std::vector<int>& all, const std::vector<int>& first,
                                 int action) {
    return std::span(all).subspan(first[action], first[action + 1] - first[action]);
  }

  std::vector<int> first_{0};  // by rank, and the number of all
  std::vector<Outline> outlines_;
  std::vector<int> publication_;                        // by action
  std::vector<int> first_source_{0}, first_reader_{0};  // by action, and the number of all
  std::vector<int> source_, reader_;
  std::vector<End> sends_, recvs_;  // until they are connected
};

// Steps that mean the same on all ranks.
//
// A plan numbers its own steps. In a chain, rank 3 receives in its step 0 what rank 2 sends in its
// step 1. Sometimes the steps of all ranks can be given new numbers, in their order, so that both
// ends of every message have the same number. Then all ranks go through one common sequence of
// steps, and an executor may overlap several of them: its peers act in the same order of steps.
//
// They can be if no rank would have to do one step before itself: the steps that messages tie
// together are one common step, each rank's next step comes after its last, and there must be no
// circle. Each common step then has the least number that allows this.
//
// num_steps[r]: of rank r. steps[r][s]: the number of its step s among the common ones. Empty if
// there are none such.
std::vector<std::vector<int>> common_steps(const std::vector<int>& num_steps, const Wiring& wiring);

// Carries out all actions, in one of the possible orders, and calls on_done for each. False:
// deadlock.
bool carry_out(const Wiring& wiring, int num_slots, const std::function<void(int action)>& on_done);

// How many slots an outbox must have, so that no order of execution can deadlock: the least number
// with which all actions can be carried out; 0 if nothing is sent. Throws PlanError if they cannot
// with any.
//
// Ranks carry out their actions in order. An action waits for the slices that it takes, and, if it
// publishes one, for a slot: with S slots, the j-th publication of a rank takes the slot of its
// (j-S)-th, and so waits until all readers of that have taken it. Nothing else is ever waited for.
//
// These waits make up a graph: an edge leads from each action to the one before it on its rank, to
// those whose slices it takes, and to those that must have read its slot. If the graph has no
// circle, then whatever the ranks have done so far, one of the actions that come next waits for
// nothing that is not done: all ranks come to their end, in any order of execution. If it has one,
// no action on it is ever carried out, in any order. So one execution stands for all, and the least
// number of slots is found by carrying the actions out without any data.
//
// What this leaves out does no harm:
//   - Chunks without elements in a round are skipped. The publications that remain wait for no more
//     than they did: that of place j for readers of a publication at or before j-S.
//   - Rounds follow each other in the same slots. What the next round waits for in this one does
//     not depend on the next.
//
// With as many slots as a rank publishes slices, nothing waits for a slot. Then plans that verify()
// accepts come to their end: see the proof there, and note that a rank publishes what it sends in a
// step before it receives anything in it.
int least_slots(const Wiring& wiring);

}  // namespace ringcomm
