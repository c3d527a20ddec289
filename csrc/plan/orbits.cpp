#include "plan/orbits.h"

#include <algorithm>
#include <vector>

namespace ringcomm {

Orbits::Orbits(Symmetry symmetry, int world_size, int ranks_per_host)
    : symmetry_(symmetry), world_size_(world_size), ranks_per_host_(ranks_per_host) {}

int Orbits::count() const {
  switch (symmetry_) {
    case Symmetry::kHosts:
      return ranks_per_host_;
    case Symmetry::kGrid:
      return 1;
    case Symmetry::kNone:
      break;
  }
  return world_size_;
}

int Orbits::representative(int rank) const { return shifted(rank, rank); }

int Orbits::shifted(int rank, int reference) const {
  if (symmetry_ == Symmetry::kNone) return rank;
  const int hosts = world_size_ / ranks_per_host_;
  const int host = (rank / ranks_per_host_ - reference / ranks_per_host_ + hosts) % hosts;
  int local = rank % ranks_per_host_;
  if (symmetry_ == Symmetry::kGrid) {
    local = (local - reference % ranks_per_host_ + ranks_per_host_) % ranks_per_host_;
  }
  return host * ranks_per_host_ + local;
}

bool Orbits::agree(const Plan& expected, int rank, const Plan& plan) const {
  const auto shape = [&](std::vector<Transfer> transfers, int reference, bool ordered) {
    for (Transfer& transfer : transfers) {
      transfer.peer = shifted(transfer.peer, reference);
      transfer.first_chunk = 0;
    }
    if (!ordered) std::ranges::stable_sort(transfers, {}, &Transfer::peer);
    return transfers;
  };
  const auto same = [&](const std::vector<Transfer>& mine, const std::vector<Transfer>& theirs,
                        bool ordered) {
    return shape(mine, rank, ordered) == shape(theirs, representative(rank), ordered);
  };
  return std::ranges::equal(plan.steps, expected.steps, [&](const Step& mine, const Step& theirs) {
    return same(mine.sends, theirs.sends, /*ordered=*/true) &&
           same(mine.recvs, theirs.recvs, /*ordered=*/false);
  });
}

}  // namespace ringcomm
