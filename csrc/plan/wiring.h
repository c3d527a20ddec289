// The actions of all ranks and their connections: which action reads what another one publishes,
// and which steps of the ranks are therefore one.
//
// Every rank keeps this for the whole group, so it is small: a few numbers for each action.
#pragma once

#include <span>
#include <vector>

#include "plan/draft.h"

namespace ringcomm {

// Actions of all ranks are numbered together, rank after rank.
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

}  // namespace ringcomm
