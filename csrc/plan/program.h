// A program: a plan rewritten as the work one rank does, chunk by chunk.
//
// A plan says what is received and what is sent. Carried out literally, a ring would write every
// partial sum to the buffer and read it back one step later to send it on. A program fuses the two:
// one action awaits the incoming slices of a chunk, adds them to the own contribution, and writes
// the result wherever it is needed next (the output, the outgoing slot, or both) in one pass.
//
//   ring all-reduce, 3 ranks, rank 0            from   to   keeps it in the output
//   send chunk 2                                       1
//   receive chunk 1, add, send on                2     1    no: it will come back complete
//   receive chunk 0, add: complete, send on      2     1    yes
//   receive chunk 2, send on                     2     1    yes
//   receive chunk 1                              2          yes
#pragma once

#include <functional>
#include <vector>

#include "plan/plan.h"

namespace ringcomm {

struct Action {
  int chunk = 0;
  std::vector<int> from;    // peers whose slice is awaited, ascending; empty: the own chunk is used
  bool reduce = false;      // add the slices to the own chunk; otherwise the one slice replaces it
  bool own_stored = false;  // the own chunk is in the output already, not in the input
  bool store = false;       // write the result to the output
  bool finish = false;      // the sum is complete, nobody adds to it any more: where avg divides
  std::vector<int> to;      // peers that read the result; one slot serves all of them
  int recv_step = -1;       // the plan's step that receives `from`, if anything is received
  int send_step = -1;       // and the one that sends `to`, if anything is sent
};

struct Program {
  int num_chunks = 0;
  std::vector<Action> actions;

  // What follows is the same on all ranks.
  int num_steps = 0;  // of the longest plan
  // The steps that slices go through one by one: up to the last that adds or, where sums stay in
  // scratch or there is but one chunk to send on, all. The others take chunks whole.
  int num_sliced_steps = 0;
  int max_added = 0;  // the most slices that one rank adds in one step
  int max_sent = 0;   // the most chunks that one rank sends in one step
  // With so many outgoing slots per rank, and so many slices that every peer
  // may leave unread in them, no order of execution can deadlock.
  int num_slots = 0;
  int max_unread = 0;
};

// plan_of(r) is rank r's plan: the own one is compiled, and the peers' tell whether they add to
// what they get, and how many slots they need. inputs[c]: this rank begins with (a contribution to)
// chunk c. outputs[c]: it must end with it. Throws std::invalid_argument if the plan would have to
// keep a partial sum of a chunk that is not an output, sends what the rank does not have, or sends
// one peer in one step a chunk just received and a lower one that was there before.
Program compile(const std::function<Plan(int rank)>& plan_of, int rank, int world_size,
                const std::vector<bool>& inputs, const std::vector<bool>& outputs);

}  // namespace ringcomm
