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

class Execution {
 public:
  Execution(const Wiring& wiring, int num_slots)
      : wiring_(wiring),
        num_slots_(num_slots),
        next_(wiring.world_size()),
        first_waiting_(wiring.num_actions(), -1),
        next_waiting_(wiring.world_size(), -1),
        publications_(wiring.world_size()) {
    for (int rank = 0; rank < wiring.world_size(); ++rank) {
      next_[rank] = wiring.first(rank);
      for (int action = next_[rank]; action < wiring.first(rank + 1); ++action) {
        rank_of_.push_back(rank);
        if (wiring.publishes(action)) publications_[rank].push_back(action);
      }
    }
  }

  bool run(const std::function<void(int action)>& on_done) {
    std::vector<int> runnable;
    for (int rank = 0; rank < wiring_.world_size(); ++rank) runnable.push_back(rank);
    int num_done = 0;
    while (!runnable.empty()) {
      const int rank = runnable.back();
      runnable.pop_back();
      while (next_[rank] < wiring_.first(rank + 1)) {
        const int awaited = awaited_by(next_[rank]);
        if (awaited >= 0) {
          next_waiting_[rank] = std::exchange(first_waiting_[awaited], rank);
          break;
        }
        for (int waiting = first_waiting_[next_[rank]]; waiting >= 0;
             waiting = next_waiting_[waiting]) {
          runnable.push_back(waiting);
        }
        on_done(next_[rank]++);
        ++num_done;
      }
    }
    return num_done == wiring_.num_actions();
  }

 private:
  bool is_done(int action) const { return action < next_[rank_of_[action]]; }

  // An action that must be done first and is not, or -1.
  int awaited_by(int action) const {
    for (const int source : wiring_.sources(action)) {
      if (!is_done(source)) return source;
    }
    if (!wiring_.publishes(action)) return -1;
    const int before = wiring_.publication(action) - num_slots_;
    if (before < 0) return -1;
    for (const int reader : wiring_.readers(publications_[rank_of_[action]][before])) {
      if (!is_done(reader)) return reader;
    }
    return -1;
  }

  const Wiring& wiring_;
  const int num_slots_;
  std::vector<int> rank_of_;  // by action
  std::vector<int> next_;     // by rank
  // The ranks that wait for an action: the first by action, and by rank the next one.
  std::vector<int> first_waiting_, next_waiting_;
  std::vector<std::vector<int>> publications_;  // by rank
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

bool carry_out(const Wiring& wiring, int num_slots,
               const std::function<void(int action)>& on_done) {
  return Execution(wiring, num_slots).run(on_done);
}

int least_slots(const Wiring& wiring) {
  int enough = 0;
  for (int action = 0; action < wiring.num_actions(); ++action) {
    if (wiring.publishes(action)) enough = std::max(enough, wiring.publication(action) + 1);
  }
  const auto suffice = [&](int num_slots) { return carry_out(wiring, num_slots, [](int) {}); };
  if (enough == 0) return 0;
  int too_few = 0;
  for (int tried = 1; tried < enough && !suffice(tried); tried *= 2) too_few = tried;
  enough = std::min(enough, std::max(1, 2 * too_few));
  if (!suffice(enough)) throw PlanError("the plans deadlock; verify says where");
  while (enough - too_few > 1) {
    const int middle = too_few + (enough - too_few) / 2;
    (suffice(middle) ? enough : too_few) = middle;
  }
  return enough;
}

}  // namespace ringcomm
