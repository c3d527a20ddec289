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
//
// A partial sum or a passing chunk that is needed again, and is no output of this rank, is kept in
// scratch. Every plan that verify() accepts can be compiled.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

// Where a rank has the value of a chunk.
struct Location {
  enum Kind : std::uint8_t { kNowhere, kInput, kOutput, kScratch };

  Kind kind = kNowhere;
  int index = 0;  // of the scratch, each as large as a slice

  bool operator==(const Location&) const = default;
};

// A slice that is awaited from a peer, and one that a peer will read. Messages are numbered by
// sender and receiver, in the order of the plans.
struct Source {
  int peer;
  int message;
  int action;  // the peer's that publishes it
  int slot;    // of the peer's outbox
};
struct Reader {
  int peer;
  int message;
  int action;  // the peer's that takes it
};

struct Action {
  int chunk = 0;
  std::vector<Source> from;  // ascending by peer; empty: the own value is used
  bool reduce = false;       // add the slices to the own value; otherwise the one slice replaces it
  Location own;              // of the value that is used
  Location store;            // of the result, if anything needs it later
  bool finish = false;       // completes the sum: where avg divides
  bool last_use = false;     // what is sent is not needed in scratch afterwards
  bool aside = false;        // copies over what this rank sends in the same step
  std::vector<Reader> to;    // one slot serves all of them
  int slot = -1;             // of the own outbox, if anything is sent
  int replaces = -1;         // the action that last wrote to the slot: in this round if it comes
                             // before this one, else in the round before
  int recv_step = -1;        // the step that receives `from`, if anything is received
  int send_step = -1;        // and the one that sends `to`, if anything is sent
};

struct Program {
  int num_chunks = 0;
  std::vector<Action> actions;
  int num_scratch = 0;  // of this rank, each for one slice

  // What follows is the same on all ranks.
  std::vector<int> num_actions;  // by rank
  int num_slots = 0;             // of every rank's outbox: see plan/wiring.h

  int num_steps = 0;  // see plan/wiring.h
  // The steps that slices go through one by one: up to the last that adds or needs scratch. The
  // others take chunks whole.
  int num_sliced_steps = 0;
  // Both ends of every message are in the same step; otherwise steps are those of each plan.
  bool in_lockstep = true;
  // Data passes through ranks that idle in some steps, and nothing stays in scratch for longer than
  // to the next step: a chain, a tree.
  bool is_relay = false;
  int max_added = 0;          // the most slices that one rank adds in one step
  int max_sent = 0;           // the most chunks that one rank sends in one step
  int scratch_per_slice = 0;  // for executors to which slices come in scratch
};

// The program of `rank` for plans that verify() accepts; plan_of(r) is rank r's. It looks at all of
// them, so that each rank knows which ranks read what it writes, and where it finds what it reads.
// Throws PlanError for plans whose transfers cannot be, whose sends and receives do not match, or
// that deadlock, and std::invalid_argument for what verify() does (plan/verify.h). What it takes
// has no bound but that of the plans: check_bounds in plan/verify.h.
Program compile(Collective collective, int world_size, const std::function<Plan(int rank)>& plan_of,
                int rank, int root = 0);

}  // namespace ringcomm
