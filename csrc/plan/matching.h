// Pairs the sends of all ranks' plans with their receives.
//
// Between two ranks messages arrive in the order in which they were sent, so the k-th send from p
// to q, counted over all steps, belongs to the k-th receive of q from p. Nothing else identifies a
// message.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ringcomm {

// A plan that does not do what it should. what() names rank, step and chunk.
class PlanError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A send and the receive it belongs to.
struct Pairing {
  int sender, send_step;
  int receiver, recv_step;
  int first_chunk, num_chunks;
  bool reduce;
};

// For error messages: "rank 2, step 5: "; "chunk 3", "chunks 3-5", "no chunk".
std::string describe_place(int rank, int step);
std::string describe_chunks(int first_chunk, int num_chunks);

// Throws PlanError for a plan of another number of chunks than rank 0's, or fewer than none, and
// for a transfer that names a peer or a chunk that does not exist, or reduces in a send.
void check_plan(const Plan& plan, int rank, int world_size, int num_chunks);

struct Traffic {
  int num_chunks = 0;
  std::vector<Pairing> pairings;
};

// Pairs those transfers for which `followed` is true (it is asked about every send and every
// receive). Throws what check_plan throws, and PlanError for a send without a receive or the
// reverse, a pair with different chunks, and more than 2^24 sends or receives to pair, which take
// 2 GB.
Traffic match(int world_size, const std::function<Plan(int rank)>& plan_of,
              const std::function<bool(const Transfer&)>& followed);

}  // namespace ringcomm
