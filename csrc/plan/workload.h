// What a simulation has to carry out: the plans of the ranks that it simulates, as tasks (one step
// of one rank) and sends between them, with every send paired with its receive. One rank stands
// for all that do the same, but for where they stand.
//
// The ranks stand in a grid of hosts and ranks per host, rank h*L + l in row h and column l. A
// shift adds to both coordinates, modulo H and L. Plans are symmetric under a set of shifts if the
// plan of a shifted rank is the plan with its peers shifted, chunk numbers aside. An orbit is a set
// of ranks that the shifts carry into each other, and its lowest rank represents it:
//
//      kNone     no shift                     every rank represents itself
//      kHosts    by any number of hosts       the ranks of host 0 represent their columns
//      kGrid     by any hosts and any ranks   rank 0 represents all
//
// With one host, or with one rank per host, kGrid is the rotation of all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/network.h"
#include "plan/plan.h"

namespace ringcomm {

enum class Symmetry { kNone, kHosts, kGrid };

class Orbits {
 public:
  // ranks_per_host divides world_size.
  Orbits(Symmetry symmetry, int world_size, int ranks_per_host);

  // The representatives are the ranks 0, ..., count()-1.
  int count() const;
  int representative(int rank) const;

  // Where `rank` comes to stand under the shift that carries `reference` to its representative.
  int shifted(int rank, int reference) const;

  // Whether `plan` of `rank` is what its representative's, `expected`, becomes when shifted: as
  // many steps, and in each the same sends in the same order and the same receives, the order of
  // those from different peers aside. All peers must be ranks.
  bool agree(const Plan& expected, int rank, const Plan& plan) const;

 private:
  Symmetry symmetry_;
  int world_size_;
  int ranks_per_host_;
};

struct Workload {
  // The tasks of a rank follow each other; a task's sends are sends[first_send ...].
  struct Task {
    int rank = 0;
    int step = 0;
    int first_send = 0, num_sends = 0;
    int num_recvs = 0;
    std::int64_t reduced_chunks = 0;
    bool last = false;
  };
  struct Send {
    int task;  // the receiver's
    int num_chunks;
    bool across;
    int from_port, to_port;
    std::uint64_t tie;  // see plan/simulate.h
  };

  Orbits orbits;
  int num_ports = 0;
  int num_chunks = 0;
  std::vector<Task> tasks;
  std::vector<Send> sends;
};

// The work of the representatives under a symmetry: the largest one that the plans of the ranks in
// `compared` have, that gives each simulated rank the ports which it has in full, and under which
// every message is received in the step in which it is sent. Throws std::invalid_argument for a
// rank that is none, and for plans of differing ranks with more than 2^22 steps or transfers; what
// check_plan throws; PlanError for sends and receives that do not match.
Workload make_workload(int world_size, const std::function<Plan(int rank)>& plan_of,
                       const Network& network, const std::vector<int>& compared);

}  // namespace ringcomm
