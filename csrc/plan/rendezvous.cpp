#include "plan/rendezvous.h"

#include <algorithm>
#include <utility>

namespace ringcomm {
Rendezvous::Rendezvous(const Contract& contract, int world_size,
                       const std::vector<Pairing>& pairings,
                       std::function<bool(int chunk)> followed)
    : contract_(contract),
      pairings_(pairings),
      followed_(std::move(followed)),
      ranks_(world_size),
      begun_(pairings.size()),
      done_(pairings.size()) {
  for (int i = 0; i < static_cast<int>(pairings.size()); ++i) {
    ranks_[pairings[i].sender].pairings.push_back(i);
    ranks_[pairings[i].receiver].pairings.push_back(i);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    std::ranges::sort(ranks_[rank].pairings, {},
                      [&](int pairing) { return std::pair(step_of(rank, pairing), pairing); });
  }
}

void Rendezvous::run() {
  const int world_size = static_cast<int>(ranks_.size());
  for (int rank = 0; rank < world_size; ++rank) begin_step(rank);
  while (!finished_.empty()) {
    const int rank = finished_.back();
    finished_.pop_back();
    finish_step(rank);
    begin_step(rank);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (ranks_[rank].unfinished > 0) throw PlanError(describe_deadlock(rank));
  }
}

RankSet Rendezvous::contents(int rank, int chunk) const {
  const auto found = ranks_[rank].written.find(chunk);
  return found != ranks_[rank].written.end() ? found->second : contract_.before(rank, chunk);
}

int Rendezvous::step_of(int rank, int pairing) const {
  const Pairing& p = pairings_[pairing];
  return p.sender == rank ? p.send_step : p.recv_step;
}

int Rendezvous::current_step(int rank) const {
  return step_of(rank, ranks_[rank].pairings[ranks_[rank].begin]);
}

void Rendezvous::begin_step(int rank) {
  Rank& r = ranks_[rank];
  r.begin = r.end;
  if (r.begin == static_cast<int>(r.pairings.size())) return;
  const int step = current_step(rank);
  while (r.end < static_cast<int>(r.pairings.size()) && step_of(rank, r.pairings[r.end]) == step) {
    ++r.end;
  }
  r.unfinished = r.end - r.begin;
  for (int i = r.begin; i < r.end; ++i) {
    const int pairing = r.pairings[i];
    if (begun_[pairing]) {
      transfer(pairing);
    } else {
      begun_[pairing] = true;
    }
  }
}

void Rendezvous::transfer(int pairing) {
  const Pairing& p = pairings_[pairing];
  const int first = is_barrier() ? 0 : p.first_chunk;
  const int count = is_barrier() ? 1 : p.num_chunks;
  for (int chunk = first; chunk < first + count; ++chunk) {
    if (!followed_(chunk)) continue;
    RankSet sent = contents(p.sender, chunk);
    if (sent.empty()) {
      throw PlanError(describe_place(p.sender, p.send_step) + "sends chunk " +
                      std::to_string(chunk) + " to rank " + std::to_string(p.receiver) +
                      ", but holds nothing in it yet");
    }
    ranks_[p.receiver].arrivals.push_back(
        {chunk, p.sender, p.reduce || is_barrier(), std::move(sent)});
  }
  done_[pairing] = true;
  for (const int rank : {p.sender, p.receiver}) {
    if (--ranks_[rank].unfinished == 0) finished_.push_back(rank);
  }
}

void Rendezvous::finish_step(int rank) {
  Rank& r = ranks_[rank];
  std::ranges::sort(r.arrivals, {}, [](const Arrival& a) { return std::pair(a.chunk, a.sender); });
  const Arrival* previous = nullptr;
  for (const Arrival& arrival : r.arrivals) {
    if (previous && previous->chunk == arrival.chunk && !(previous->adds && arrival.adds)) {
      throw PlanError(describe_place(rank, current_step(rank)) + "receives chunk " +
                      std::to_string(arrival.chunk) + " from ranks " +
                      std::to_string(previous->sender) + " and " + std::to_string(arrival.sender) +
                      ", and does not add both");
    }
    r.written[arrival.chunk] = arrival.adds ? sum(rank, arrival) : arrival.contents;
    previous = &arrival;
  }
  r.arrivals.clear();
}

RankSet Rendezvous::sum(int rank, const Arrival& arrival) const {
  const RankSet held = contents(rank, arrival.chunk);
  const auto error = [&](const std::string& what) {
    return PlanError(describe_place(rank, current_step(rank)) + "adds chunk " +
                     std::to_string(arrival.chunk) + " from rank " +
                     std::to_string(arrival.sender) + what);
  };
  if (held.empty()) throw error(" to a chunk that holds nothing yet");
  const auto twice = held.first_in_common(arrival.contents);
  if (twice && !is_barrier()) {
    throw error(", which counts the contribution of rank " + std::to_string(*twice) + " twice");
  }
  return held.united_with(arrival.contents);
}

// A rank that is stuck waits for one whose current step is an earlier one than the transfer needs,
// so that one is stuck too; following who waits for whom must lead back to a rank already seen.
std::string Rendezvous::describe_deadlock(int rank) const {
  const auto waits_for = [&](int waiting) {
    const Rank& r = ranks_[waiting];
    return *std::find_if(r.pairings.begin() + r.begin, r.pairings.begin() + r.end,
                         [&](int pairing) { return !done_[pairing]; });
  };
  std::vector<bool> seen(ranks_.size());
  while (!seen[rank]) {
    seen[rank] = true;
    const Pairing& p = pairings_[waits_for(rank)];
    rank = p.sender == rank ? p.receiver : p.sender;
  }
  constexpr int kMostRanksNamed = 8;
  std::string text = "deadlock: ";
  int named = 0;
  for (int at = rank; named == 0 || at != rank; ++named) {
    const Pairing& p = pairings_[waits_for(at)];
    const bool sends = p.sender == at;
    if (named < kMostRanksNamed) {
      text += "rank " + std::to_string(at) + " at step " + std::to_string(current_step(at)) +
              " waits to " + (sends ? "send " : "receive ") +
              describe_chunks(p.first_chunk, p.num_chunks) + (sends ? " to" : " from") + " rank " +
              std::to_string(sends ? p.receiver : p.sender) + " (there step " +
              std::to_string(sends ? p.recv_step : p.send_step) + "); ";
    }
    at = sends ? p.receiver : p.sender;
  }
  if (named > kMostRanksNamed) {
    text += "and so on through " + std::to_string(named) + " ranks back to rank " +
            std::to_string(rank);
  } else {
    text.resize(text.size() - 2);
  }
  return text;
}

}  // namespace ringcomm
