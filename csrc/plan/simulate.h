// How long plans take on a network: a discrete-event simulation of all ranks.
//
// The model is LogGP's (A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman, JPDC 44(1), 1997) with
// a receiving side. Every rank has a port to send and one to receive inside its host, the same two
// towards other hosts (there several ranks may share them: network cards), and one engine that
// reduces. Buffers are cut into equal chunks (fractions of a byte count), chunks into slices, and
// each slice goes through the whole plan on its own, beside the others:
//
//   - A rank begins a step for a slice when it is done with the step before for this slice.
//   - It then issues the step's sends, in the plan's order. A message of m bytes occupies the
//     sending port for  overhead + m / bandwidth.
//   - Its first byte is at the receiver `latency` after it left, and there it occupies the
//     receiving port for as long. Ports serve in the order of requests.
//   - When the sends have left and the receives have arrived, the rank's engine adds what is to be
//     added, in  bytes / reduce_bandwidth.  Then the step is done.
//
// Messages wait for their receiver as long as need be: buffers are unlimited. So one uncontended
// message takes  latency + overhead + m / bandwidth, and a ring all-reduce of one slice per chunk
//
//      2 (n-1) (latency + overhead)  +  2 (n-1)/n * nbytes / bandwidth
//                                    +    (n-1)/n * nbytes / reduce_bandwidth.
//
// More slices overlap latency, transfer and reduction, and pay the overhead more often.
//
// Limits. Where the network says what a rank can send (egress) or receive (ingress), messages
// inside a host do not take turns at ports. They are under way at the same time, and share both
// limits fairly (plan/fair_flows.h): a GPU among others, whose slices are lanes that move data by
// themselves. For each slice
//
//   - a step's messages inside the host follow each other in the plan's order, the next one
//     when the one before has left;
//   - a message waits for `overhead`, and then leaves at `bandwidth`, or as fast as it is let;
//   - it is there `latency` after its last byte left.
//
// So an uncontended message takes as long as before. Ranks that all begin with the same peer share
// its ingress, while the others' lies idle: an exchange in rank order among n ranks takes n/2
// times as long as one in which each rank begins with the next.
//
// Large groups. A ring of 16,384 ranks exchanges 537 million messages, but its ranks all do the
// same. Where plans are symmetric (plan/workload.h), one rank of each orbit is simulated, and what
// it sends to a rank is delivered to that rank's representative. This gives the result of
// simulating all ranks, to the last bit (where limits are shared, but for rounding: fair rates are
// symmetric as plans are):
//
//   - Events are carried out in the order of (time, step, slice, kind, tie). An event reads and
//     changes the state of its own rank, or of ports of its host, and causes only later events in
//     this order, because every message is received in the step in which it is sent.
//   - Ties between messages are broken by the place among the sender's sends, then by how many
//     hosts the sender is away and its place on its host. Shifts by hosts change none of these.
//     Shifts of kGrid change the last, but there a port is one rank's, and to one rank, in one
//     step, only one message has a given place among the sends.
//   - Suppose that all events up to some point of the order were carried out, and that the shifts
//     map the states and the pending events onto themselves. The next events are each other's
//     images. None depends on another's changes, since these are on different hosts, or at ranks
//     with ports of their own. They read equal states, so they change them equally and cause events
//     that are each other's images again. At the beginning all states are equal and the first steps
//     begin everywhere; so this holds to the end.
//   - Hence, when a message leaves for some rank, its image leaves for that rank's representative
//     at the same time, and every message to a representative is the image of one that a
//     representative sends.
//
// make_workload (plan/workload.h) checks what this rests on: that the plans are symmetric, that
// messages are received in step, and that ports belong to what is simulated. Without symmetry all
// ranks are simulated.
//
// Cost, on one core of an AMD EPYC (Zen 4): 60 ns for each simulated message where there are few
// ranks, 0.2 to 0.9 us where there are a thousand and the events no longer fit the cache. The ring
// of 16,384 ranks takes 2 ms for the 32,766 messages of the one rank simulated, or 22 ms for eight
// ranks, if hosts have eight; comparing its plans takes 6 to 9 ms for each. Memory is that of the
// simulated tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "plan/network.h"
#include "plan/plan.h"
#include "plan/workload.h"

namespace ringcomm {

struct Simulation {
  double seconds = 0;             // until the last rank is done
  std::int64_t num_messages = 0;  // of all ranks: transfers times slices
  int ranks_simulated = 0;
};

class Simulator {
 public:
  // plan_of(r) is rank r's plan. Symmetry is established by comparing the plans of the ranks in
  // `compared`: pass all ranks, unless the plans come from a generator that treats all ranks alike
  // and the group is too large for that; then a sample will do. Throws what check_network
  // (plan/network.h) and make_workload (plan/workload.h) throw.
  Simulator(int world_size, const std::function<Plan(int rank)>& plan_of, const Network& network,
            const std::vector<int>& compared);

  // The collective on nbytes per rank, the whole buffer that the plans' chunks make up, with slices
  // of at most slice_nbytes. Throws std::invalid_argument for an nbytes below 0, a slice_nbytes
  // that is not above 0, and more than 2^26 slices of simulated ranks' steps or 2^25 of their
  // messages; PlanError for a deadlock.
  Simulation run(double nbytes,
                 double slice_nbytes = std::numeric_limits<double>::infinity()) const;

 private:
  int world_size_;
  Network network_;
  Workload workload_;
};

}  // namespace ringcomm
