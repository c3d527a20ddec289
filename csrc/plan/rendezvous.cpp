#include "plan/rendezvous.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

namespace ringcomm {
namespace {

constexpr std::size_t kMostPaired = std::size_t{1} << 24;

// A send or a receive of one rank's plan.
struct End {
  int rank, step;
  Transfer transfer;
};

struct Ends {
  int num_chunks = 0;
  std::vector<End> sends, recvs;
};

void check_number(const std::vector<End>& ends) {
  if (ends.size() <= kMostPaired) return;
  throw PlanError("there are more than " + std::to_string(kMostPaired) +
                  " transfers to pair; fewer ranks, or fewer transfers, would do");
}

Ends collect(int world_size, const std::function<Plan(int rank)>& plan_of,
             const std::function<bool(const Transfer&)>& followed) {
  Ends ends;
  for (int rank = 0; rank < world_size; ++rank) {
    const Plan plan = plan_of(rank);
    if (rank == 0) ends.num_chunks = plan.num_chunks;
    check_plan(plan, rank, world_size, ends.num_chunks);
    for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
      for (const Transfer& send : plan.steps[step].sends) {
        if (followed(send)) ends.sends.push_back({rank, step, send});
      }
      for (const Transfer& recv : plan.steps[step].recvs) {
        if (followed(recv)) ends.recvs.push_back({rank, step, recv});
      }
    }
    check_number(ends.sends);
    check_number(ends.recvs);
  }
  return ends;
}

// Sorts by key(end), a rank, and keeps the order of ends with the same one.
template <typename Key>
void sort_by_rank(std::vector<End>& ends, int world_size, const Key& key) {
  std::vector<std::size_t> next(world_size + 1);
  for (const End& end : ends) ++next[key(end) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<End> sorted(ends.size());
  for (const End& end : ends) sorted[next[key(end)]++] = end;
  ends = std::move(sorted);
}

constexpr std::size_t kMostDense = std::size_t{1} << 24;  // 64 MB

}  // namespace

Traffic match(int world_size, const std::function<Plan(int rank)>& plan_of,
              const std::function<bool(const Transfer&)>& followed) {
  Ends ends = collect(world_size, plan_of, followed);
  // They are in the order of their ranks, and for each pair of ranks in that of the steps.
  const auto send_key = [](const End& end) { return std::pair(end.rank, end.transfer.peer); };
  const auto recv_key = [](const End& end) { return std::pair(end.transfer.peer, end.rank); };
  const auto peer_of = [](const End& end) { return end.transfer.peer; };
  sort_by_rank(ends.sends, world_size, peer_of);
  sort_by_rank(ends.sends, world_size, [](const End& end) { return end.rank; });
  sort_by_rank(ends.recvs, world_size, peer_of);

  Traffic traffic{.num_chunks = ends.num_chunks, .pairings = {}};
  traffic.pairings.reserve(ends.sends.size());
  auto send = ends.sends.begin();
  auto recv = ends.recvs.begin();
  while (send != ends.sends.end() || recv != ends.recvs.end()) {
    if (recv == ends.recvs.end() ||
        (send != ends.sends.end() && send_key(*send) < recv_key(*recv))) {
      throw PlanError(describe_send(send->rank, send->step, send->transfer) +
                      ", which does not receive it");
    }
    if (send == ends.sends.end() || recv_key(*recv) < send_key(*send)) {
      throw PlanError(describe_recv(recv->rank, recv->step, recv->transfer) +
                      ", which does not send it");
    }
    const Transfer& sent = send->transfer;
    const Transfer& received = recv->transfer;
    if (std::tie(sent.first_chunk, sent.num_chunks) !=
        std::tie(received.first_chunk, received.num_chunks)) {
      throw PlanError(describe_send(send->rank, send->step, send->transfer) +
                      ", which at its step " + std::to_string(recv->step) + " receives " +
                      describe_chunks(received.first_chunk, received.num_chunks) + " from it");
    }
    traffic.pairings.push_back({.sender = send->rank,
                                .send_step = send->step,
                                .receiver = recv->rank,
                                .recv_step = recv->step,
                                .first_chunk = sent.first_chunk,
                                .num_chunks = sent.num_chunks,
                                .reduce = received.reduce});
    ++send;
    ++recv;
  }
  return traffic;
}

int Followed::place(std::int64_t chunk) const {
  if (chunks_.empty()) return static_cast<int>(chunk);
  return static_cast<int>(std::ranges::lower_bound(chunks_, chunk) - chunks_.begin());
}

Rendezvous::Rendezvous(const Contract& contract, const std::vector<Pairing>& pairings,
                       const Followed& followed, Symbols& symbols)
    : contract_(contract),
      pairings_(pairings),
      followed_(followed),
      symbols_(symbols),
      ranks_(contract.world_size()),
      begun_(pairings.size()),
      done_(pairings.size()) {
  const int world_size = contract.world_size();
  for (int rank = 0; rank < world_size; ++rank) inputs_.push_back(symbols.input(rank));
  for (int i = 0; i < static_cast<int>(pairings.size()); ++i) {
    ranks_[pairings[i].sender].pairings.push_back(i);
    ranks_[pairings[i].receiver].pairings.push_back(i);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    std::ranges::sort(ranks_[rank].pairings, {},
                      [&](int pairing) { return std::pair(step_of(rank, pairing), pairing); });
  }
  if (index(world_size, 0) > kMostDense) return;
  std::vector<Symbol> contents;
  contents.reserve(index(world_size, 0));
  for (int rank = 0; rank < world_size; ++rank) {
    for (int place = 0; place < followed_.size(); ++place) {
      contents.push_back(Rendezvous::contents(rank, place));
    }
  }
  contents_ = std::move(contents);
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

Symbol Rendezvous::contents(int rank, int place) const {
  if (!contents_.empty()) return contents_[index(rank, place)];
  const auto found = written_.find(index(rank, place));
  if (found != written_.end()) return found->second;
  return contract_.holds_before(rank, followed_.chunk(place)) ? inputs_[rank] : kNothing;
}

void Rendezvous::write(int rank, int chunk, Symbol symbol) {
  const std::size_t at = index(rank, followed_.place(chunk));
  if (contents_.empty()) {
    written_[at] = symbol;
  } else {
    contents_[at] = symbol;
  }
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
  const std::int64_t first = is_barrier() ? 0 : p.first_chunk;
  const int end = followed_.place(first + (is_barrier() ? 1 : p.num_chunks));
  for (int place = followed_.place(first); place < end; ++place) {
    const int chunk = followed_.chunk(place);
    const Symbol sent = contents(p.sender, place);
    if (sent == kNothing) {
      throw PlanError(describe_place(p.sender, p.send_step) + "sends chunk " +
                      std::to_string(chunk) + " to rank " + std::to_string(p.receiver) +
                      ", but holds nothing in it yet");
    }
    ranks_[p.receiver].arrivals.push_back({chunk, p.sender, p.reduce || is_barrier(), sent});
  }
  done_[pairing] = true;
  for (const int rank : {p.sender, p.receiver}) {
    if (--ranks_[rank].unfinished == 0) finished_.push_back(rank);
  }
}

void Rendezvous::finish_step(int rank) {
  std::vector<Arrival>& arrivals = ranks_[rank].arrivals;
  std::ranges::sort(arrivals, {}, [](const Arrival& a) { return std::pair(a.chunk, a.sender); });
  for (std::size_t i = 0, end = 0; i < arrivals.size(); i = end) {
    const Arrival& first = arrivals[i];
    const auto error = [&](const std::string& verb, const std::string& what) {
      return PlanError(describe_place(rank, current_step(rank)) + verb + " chunk " +
                       std::to_string(first.chunk) + what);
    };
    for (end = i + 1; end < arrivals.size() && arrivals[end].chunk == first.chunk; ++end) {
      if (arrivals[end - 1].adds && arrivals[end].adds) continue;
      throw error("receives", " from ranks " + std::to_string(arrivals[end - 1].sender) + " and " +
                                  std::to_string(arrivals[end].sender) + ", and does not add both");
    }
    if (!first.adds) {
      write(rank, first.chunk, first.symbol);
      continue;
    }
    const Symbol held = contents(rank, followed_.place(first.chunk));
    if (held == kNothing) {
      throw error("adds", " from rank " + std::to_string(first.sender) +
                              " to a chunk that holds nothing yet");
    }
    write(rank, first.chunk,
          symbols_.sum({rank, current_step(rank), first.chunk, held,
                        std::span(arrivals).subspan(i, end - i)}));
  }
  arrivals.clear();
}

// A rank that is stuck waits for a rank whose current step is earlier than the transfer needs. So
// that rank is stuck, too. A walk from each rank to the one that it waits for must come back to a
// rank already seen.
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
