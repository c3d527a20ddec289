#include "plan/wiring.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/matching.h"

namespace ringcomm {

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

}  // namespace ringcomm
