// What a simulation has to carry out: the plans of the ranks that it simulates, as tasks (one step
// of one rank) and sends between them, with every send paired with its receive.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/network.h"
#include "plan/orbits.h"
#include "plan/plan.h"

namespace ringcomm {

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
// check_plan (plan/matching.h) throws; PlanError for sends and receives that do not match.
Workload make_workload(int world_size, const std::function<Plan(int rank)>& plan_of,
                       const Network& network, const std::vector<int>& compared);

}  // namespace ringcomm
