#include "plan/wiring.h"

#include <algorithm>
#include <numeric>
#include <tuple>
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

void Wiring::add(const std::vector<Action>& actions) {
  const int rank = world_size();
  int num_publications = 0;
  for (const Action& each : actions) {
    const int action = static_cast<int>(outlines_.size());
    outlines_.push_back({each.chunk, each.recv_step, each.send_step, each.reduce});
    for (const Source& source : each.from) {
      const int at = static_cast<int>(recvs_.size());
      recvs_.push_back({source.peer, rank, source.message, action, at});
    }
    for (const Reader& reader : each.to) {
      const int at = static_cast<int>(sends_.size());
      sends_.push_back({rank, reader.peer, reader.message, action, at});
    }
    first_source_.push_back(static_cast<int>(recvs_.size()));
    first_reader_.push_back(static_cast<int>(sends_.size()));
    publication_.push_back(num_publications);
    if (!each.to.empty()) ++num_publications;
  }
  first_.push_back(static_cast<int>(outlines_.size()));
}

void Wiring::connect() {
  const auto key = [](const End& end) { return std::tuple(end.sender, end.receiver, end.message); };
  std::vector<End> sends = std::exchange(sends_, {});
  std::vector<End> recvs = std::exchange(recvs_, {});
  std::ranges::sort(sends, {}, key);
  std::ranges::sort(recvs, {}, key);
  if (!std::ranges::equal(sends, recvs, {}, key, key)) {
    throw PlanError("the plans' sends and receives do not match; verify says more");
  }
  source_.resize(recvs.size());
  reader_.resize(sends.size());
  for (std::size_t i = 0; i < sends.size(); ++i) {
    source_[recvs[i].at] = sends[i].action;
    reader_[sends[i].at] = recvs[i].action;
  }
}

int Wiring::rank_of(int action) const {
  return static_cast<int>(std::ranges::upper_bound(first_, action) - first_.begin()) - 1;
}

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
