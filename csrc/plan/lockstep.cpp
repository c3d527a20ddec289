#include "plan/lockstep.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ringcomm {
namespace {

// The steps of all ranks, rank after rank, in groups that messages tie together.
class Groups {
 public:
  explicit Groups(int num_steps) : parent_(num_steps) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int of(int step) {
    while (parent_[step] != step) step = parent_[step] = parent_[parent_[step]];
    return step;
  }
  void join(int a, int b) { parent_[of(a)] = of(b); }

 private:
  std::vector<int> parent_;
};

}  // namespace

std::vector<std::vector<int>> common_steps(const std::vector<int>& num_steps,
                                           const Wiring& wiring) {
  const int world_size = wiring.world_size();
  std::vector<int> first(world_size + 1);
  for (int r = 0; r < world_size; ++r) first[r + 1] = first[r] + num_steps[r];

  Groups groups(first.back());
  for (int sender = 0; sender < world_size; ++sender) {
    for (int action = wiring.first(sender); action < wiring.first(sender + 1); ++action) {
      for (const int reader : wiring.readers(action)) {
        groups.join(first[sender] + wiring.outline(action).send_step,
                    first[wiring.rank_of(reader)] + wiring.outline(reader).recv_step);
      }
    }
  }

  // Longest paths, from the groups that nothing comes before.
  std::vector<std::pair<int, int>> next;  // groups that follow each other
  std::vector<int> num_before(first.back());
  for (int r = 0; r < world_size; ++r) {
    for (int s = first[r]; s + 1 < first[r + 1]; ++s) {
      next.emplace_back(groups.of(s), groups.of(s + 1));
      ++num_before[next.back().second];
    }
  }
  std::ranges::sort(next);
  std::vector<int> ready, level(first.back());
  int num_groups = 0, num_done = 0;
  for (int s = 0; s < first.back(); ++s) {
    if (groups.of(s) != s) continue;
    ++num_groups;
    if (num_before[s] == 0) ready.push_back(s);
  }
  while (!ready.empty()) {
    const int group = ready.back();
    ready.pop_back();
    ++num_done;
    for (auto it = std::ranges::lower_bound(next, std::pair(group, 0));
         it != next.end() && it->first == group; ++it) {
      level[it->second] = std::max(level[it->second], level[group] + 1);
      if (--num_before[it->second] == 0) ready.push_back(it->second);
    }
  }
  if (num_done != num_groups) return {};

  std::vector<std::vector<int>> steps(world_size);
  for (int r = 0; r < world_size; ++r) {
    for (int s = first[r]; s < first[r + 1]; ++s) steps[r].push_back(level[groups.of(s)]);
  }
  return steps;
}

}  // namespace ringcomm
