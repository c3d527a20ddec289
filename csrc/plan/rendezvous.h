// The symbolic execution under rendezvous on which plan/verify.h rests its proof.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/collective.h"
#include "plan/matching.h"
#include "plan/rank_set.h"

namespace ringcomm {

class Rendezvous {
 public:
  // Only chunks for which `followed` is true are given contents.
  Rendezvous(const Contract& contract, int world_size, const std::vector<Pairing>& pairings,
             std::function<bool(int chunk)> followed);

  // Carries out every transfer. Throws PlanError for a deadlock, for a transfer of something
  // unspecified, and for a contribution counted twice.
  void run();

  // What `chunk` holds on `rank` now; empty where that is unspecified.
  RankSet contents(int rank, int chunk) const;

 private:
  struct Arrival {
    int chunk;
    int sender;
    bool adds;
    RankSet contents;
  };

  struct Rank {
    std::vector<int> pairings;      // indices of its sends and receives, in the order of its steps
    int begin = 0, end = 0;         // the part of `pairings` that is the current step
    int unfinished = 0;             // transfers of the current step
    std::vector<Arrival> arrivals;  // received in the current step
    std::unordered_map<int, RankSet> written;  // chunks that no longer hold what they began with
  };

  int step_of(int rank, int pairing) const;
  int current_step(int rank) const;
  void begin_step(int rank);
  void transfer(int pairing);
  void finish_step(int rank);
  // What the rank holds in the chunk once the arrival is added to it.
  RankSet sum(int rank, const Arrival& arrival) const;
  bool is_barrier() const { return contract_.collective() == Collective::kBarrier; }
  std::string describe_deadlock(int rank) const;

  const Contract& contract_;
  const std::vector<Pairing>& pairings_;
  std::function<bool(int chunk)> followed_;
  std::vector<Rank> ranks_;
  std::vector<bool> begun_;    // by pairing: one of its ends has begun its step
  std::vector<bool> done_;     // by pairing
  std::vector<int> finished_;  // ranks whose current step is done
};

}  // namespace ringcomm
