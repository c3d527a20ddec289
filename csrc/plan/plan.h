// A plan: what one rank does in one collective, as plain data.
//
// The buffer is divided into num_chunks chunks. In every step a rank sends and receives ranges of
// chunks; all transfers of one step may proceed together, and a step begins when the one before it
// is done. A plan knows no bytes, no element type and no transport: executors bring those.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ringcomm {

struct Transfer {
  int peer = 0;
  int first_chunk = 0;
  int num_chunks = 0;
  bool reduce = false;  // receives only: add to what is there, or overwrite it

  bool operator==(const Transfer&) const = default;
};

// Several receives with `reduce` of one chunk in one step are added all at once, in rank order.
// Several sends of one range in one step are a publication: written once, read by each peer.
struct Step {
  std::vector<Transfer> sends;
  std::vector<Transfer> recvs;

  bool operator==(const Step&) const = default;
};

struct Plan {
  int num_chunks = 0;
  std::vector<Step> steps;

  bool operator==(const Plan&) const = default;
};

// The steps of `first`, then those of `second`. Throws std::invalid_argument where the two divide
// the buffer into different numbers of chunks.
Plan then(Plan first, Plan second);

// A part of an algorithm that has a name, for tables and pictures. All ranks have it in the same
// steps, and phases follow each other without a gap from the first step to the last.
struct Phase {
  std::string_view name;
  int num_steps = 0;

  bool operator==(const Phase&) const = default;
};

// The table of algorithms checks this before any of them makes a plan. Throw std::invalid_argument,
// naming what was passed and what is allowed, unless 1 <= world_size <= 2^30,
// 0 <= rank < world_size and 0 <= root < world_size. Up to 2^30 the sum of two ranks fits an int.
void check_rank(int rank, int world_size);
void check_root(int root, int world_size);
// Throws std::invalid_argument unless an int holds the square of world_size, the number of chunks
// of an all-to-all.
void check_square(int world_size);

// A plan that does not do what it should. what() names rank, step and chunk.
class PlanError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws PlanError for a plan of another number of chunks than rank 0's, or fewer than none, and
// for a transfer that names a peer or a chunk that does not exist, or reduces in a send.
void check_plan(const Plan& plan, int rank, int world_size, int num_chunks);

// For error messages: "rank 2, step 5: "; "chunk 3", "chunks 3-5", "no chunk"; "rank 2, step 5:
// sends chunk 3 to rank 1"; "rank 1, step 4: receives chunk 3 from rank 2".
std::string describe_place(int rank, int step);
std::string describe_chunks(int first_chunk, int num_chunks);
std::string describe_send(int rank, int step, const Transfer& send);
std::string describe_recv(int rank, int step, const Transfer& recv);

}  // namespace ringcomm
