// The actions of all ranks and their connections: which action reads what another one publishes.
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

}  // namespace ringcomm
