// A plan: what one rank does in one collective, as plain data.
//
// The buffer is divided into num_chunks chunks. In every step a rank sends and receives ranges of
// chunks; all transfers of one step may proceed together, and a step begins when the one before it
// is done. A plan knows no bytes, no element type and no transport: executors bring those.
#pragma once

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

}  // namespace ringcomm
