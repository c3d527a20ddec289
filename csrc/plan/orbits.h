// Which ranks of a group do the same, but for where they stand.
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

#include "plan/plan.h"

namespace ringcomm {

enum class Symmetry { kNone, kHosts, kGrid };

class Orbits {
 public:
  // ranks_per_host divides world_size.
  Orbits(Symmetry symmetry, int world_size, int ranks_per_host);

  Symmetry symmetry() const { return symmetry_; }

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

}  // namespace ringcomm
