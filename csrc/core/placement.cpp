#include "core/placement.h"

#include <algorithm>

namespace ringcomm {

int Placement::num_hosts() const {
  return host_of.empty() ? 0 : *std::ranges::max_element(host_of) + 1;
}

bool Placement::is_on(int host, int rank) const {
  return rank >= 0 && rank < static_cast<int>(host_of.size()) && host_of[rank] == host;
}

std::vector<int> Placement::ranks_on(int host) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
    if (host_of[rank] == host) ranks.push_back(rank);
  }
  return ranks;
}

int Placement::leader_of(int host) const {
  return static_cast<int>(std::ranges::find(host_of, host) - host_of.begin());
}

}  // namespace ringcomm
