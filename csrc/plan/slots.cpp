#include "plan/slots.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace ringcomm {
namespace {

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
