// The plans behind each collective, chosen by algorithm, and their programs for one rank.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/program.h"

namespace ringcomm {

// kAuto: the communicator chooses, by nbytes, dtype and world size.
enum class Algorithm : std::uint8_t { kAuto, kRing, kDirect };

// Rings pass data on from neighbour to neighbour; direct plans send it where it is wanted. What
// only moves from or to one rank is the same in both. `algorithm` is not kAuto; a barrier has no
// plan here. root is ignored by collectives without one.
Plan make_plan(Collective collective, Algorithm algorithm, int rank, int world_size, int root);

// One rank's programs, each compiled once.
class Programs {
 public:
  Programs(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  const Program& find(Collective collective, Algorithm algorithm, int root);

 private:
  const int rank_;
  const int world_size_;
  std::map<std::tuple<Collective, Algorithm, int>, Program> programs_;
};

}  // namespace ringcomm
