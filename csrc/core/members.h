// Who is in a group, as its users speak of them: by the ranks of the default group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringcomm {

struct Members {
  std::string group = {};                        // its name, or empty
  std::vector<std::uint64_t> global_ranks = {};  // by rank; empty: they are the same

  std::uint64_t global(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return r < global_ranks.size() ? global_ranks[r] : r;
  }

  // The rank of this number there, if it is in the group.
  std::optional<int> find(std::uint64_t global_rank, int world_size) const;

  // "rank 2" where that is its number in the group, too, else "rank 2 (rank 1 of group tp)".
  std::string name(int rank) const;
  // "no rank", "rank 2", "ranks 0, 2 and 5", "ranks 2 and 3 (ranks 0 and 1 of group tp)"
  std::string names(const std::vector<int>& ranks) const;

 private:
  std::string in_group(const std::vector<int>& ranks) const;
};

}  // namespace ringcomm
