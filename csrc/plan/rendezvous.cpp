#include "plan/rendezvous.h"

#include <algorithm>
#include <utility>

namespace ringcomm {
Rendezvous::Rendezvous(const Contract& contract, int world_size,
                       const std::vector<Message>& messages,
                       std::function<bool(int chunk)> followed)
    : contract_(contract),
      messages_(messages),
      followed_(std::move(followed)),
      ranks_(world_size),
      begun_(messages.size()),
      done_(messages.size()) {
  for (int i = 0; i < static_cast<int>(messages.size()); ++i) {
    ranks_[messages[i].sender].messages.push_back(i);
    ranks_[messages[i].receiver].messages.push_back(i);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    std::ranges::sort(ranks_[rank].messages, {},
                      [&](int message) { return std::pair(step_of(rank, message), message); });
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

int Rendezvous::step_of(int rank, int message) const {
  const Message& m = messages_[message];
  return m.sender == rank ? m.send_step : m.recv_step;
}

int Rendezvous::current_step(int rank) const {
  return step_of(rank, ranks_[rank].messages[ranks_[rank].begin]);
}

void Rendezvous::begin_step(int rank) {
  Rank& r = ranks_[rank];
  r.begin = r.end;
  if (r.begin == static_cast<int>(r.messages.size())) return;
  const int step = current_step(rank);
  while (r.end < static_cast<int>(r.messages.size()) && step_of(rank, r.messages[r.end]) == step) {
    ++r.end;
  }
  r.unfinished = r.end - r.begin;
  for (int i = r.begin; i < r.end; ++i) {
    const int message = r.messages[i];
    if (begun_[message]) {
      transfer(message);
    } else {
      begun_[message] = true;
    }
  }
}

void Rendezvous::transfer(int message) {
  const Message& m = messages_[message];
  const int first = is_barrier() ? 0 : m.first_chunk;
  const int count = is_barrier() ? 1 : m.num_chunks;
  for (int chunk = first; chunk < first + count; ++chunk) {
    if (!followed_(chunk)) continue;
    RankSet sent = contents(m.sender, chunk);
    if (sent.empty()) {
      throw PlanError(describe_place(m.sender, m.send_step) + "sends chunk " +
                      std::to_string(chunk) + " to rank " + std::to_string(m.receiver) +
                      ", but holds nothing in it yet");
    }
    ranks_[m.receiver].arrivals.push_back(
        {chunk, m.sender, m.reduce || is_barrier(), std::move(sent)});
  }
  done_[message] = true;
  for (const int rank : {m.sender, m.receiver}) {
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
    return *std::find_if(r.messages.begin() + r.begin, r.messages.begin() + r.end,
                         [&](int message) { return !done_[message]; });
  };
  std::vector<bool> seen(ranks_.size());
  while (!seen[rank]) {
    seen[rank] = true;
    const Message& m = messages_[waits_for(rank)];
    rank = m.sender == rank ? m.receiver : m.sender;
  }
  constexpr int kMostRanksNamed = 8;
  std::string text = "deadlock: ";
  int named = 0;
  for (int at = rank; named == 0 || at != rank; ++named) {
    const Message& m = messages_[waits_for(at)];
    const bool sends = m.sender == at;
    if (named < kMostRanksNamed) {
      text += "rank " + std::to_string(at) + " at step " + std::to_string(current_step(at)) +
              " waits to " + (sends ? "send " : "receive ") +
              describe_chunks(m.first_chunk, m.num_chunks) + (sends ? " to" : " from") + " rank " +
              std::to_string(sends ? m.receiver : m.sender) + " (there step " +
              std::to_string(sends ? m.recv_step : m.send_step) + "); ";
    }
    at = sends ? m.receiver : m.sender;
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
