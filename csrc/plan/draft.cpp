// The first part of compiling: one rank's plan as a draft.
#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "plan/plan.h"
#include "plan/wiring.h"

namespace ringcomm {
namespace {

// One chunk of a transfer.
struct Part {
  int step;
  int chunk;
  int peer;
  int message;
  bool reduce;
};
using Parts = std::span<const Part>;

// What happens to a chunk, in order: in each step it is first sent, then received.
struct Event {
  int chunk;
  int step;
  enum Kind { kSend, kAdd, kCopy } kind;
};

// A chunk that the rank sends or receives.
struct Chunk {
  int number;
  bool is_output;
  Location value;
  int next_event;
  int last_received = -1;  // the last event that is no send
  int sent_early = -1;     // the step whose send is done already
};

// By step, then chunk, then peer.
std::vector<Part> parts_of(const Plan& plan, std::vector<Transfer> Step::*transfers) {
  std::vector<Part> parts;
  std::unordered_map<int, int> num_messages;  // by peer
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    for (const Transfer& transfer : plan.steps[s].*transfers) {
      int& next = num_messages[transfer.peer];
      for (int i = 0; i < transfer.num_chunks; ++i) {
        parts.push_back({s, transfer.first_chunk + i, transfer.peer, next++, transfer.reduce});
      }
    }
  }
  std::ranges::stable_sort(parts, {},
                           [](const Part& p) { return std::tuple(p.step, p.chunk, p.peer); });
  return parts;
}

class Drafting {
 public:
  Drafting(const Contract& contract, const Plan& plan, int rank)
      : rank_(rank),
        sends_(parts_of(plan, &Step::sends)),
        recvs_(parts_of(plan, &Step::recvs)),
        contract_(contract) {
    draft_.num_steps = static_cast<int>(plan.steps.size());
    draft_.added.resize(draft_.num_steps);
    draft_.arriving.resize(draft_.num_steps);
    list_events();
  }

  Draft run() && {
    auto send = sends_.begin();
    auto recv = recvs_.begin();
    for (int s = 0; s < draft_.num_steps; ++s) {
      const auto sends_begin = send;
      while (send != sends_.end() && send->step == s) ++send;
      const auto recvs_begin = recv;
      while (recv != recvs_.end() && recv->step == s) ++recv;
      if (send != sends_begin || recv != recvs_begin) ++draft_.num_busy_steps;
      int num_sent = 0;
      for_each_chunk({sends_begin, send}, [&](Parts parts) {
        ++num_sent;
        if (chunk(parts.front().chunk).sent_early != s) add_send(parts);
      });
      draft_.max_sent = std::max(draft_.max_sent, num_sent);
      for (const Parts parts : rotated({recvs_begin, recv})) add_recv(parts);
    }
    for (const int c : contract_.promised_chunks(rank_)) {
      const Chunk* moved = find(c);
      if (moved != nullptr ? !stays(*moved) : !contract_.holds_before(rank_, c)) continue;
      Action& action = draft_.actions.emplace_back();
      action.chunk = c;
      action.own = {Location::kInput};
      action.store = {Location::kOutput};
    }
    return std::move(draft_);
  }

 private:
  template <typename Visit>
  static void for_each_chunk(Parts parts, const Visit& visit) {
    while (!parts.empty()) {
      std::size_t n = 1;
      while (n < parts.size() && parts[n].chunk == parts[0].chunk) ++n;
      visit(parts.first(n));
      parts = parts.subspan(n);
    }
  }

  // One step's receives, chunk by chunk: what is added first, then what is only taken, beginning
  // with the rank before this one. In the order of chunks all ranks would take from the same rank
  // at the same time, and share what it can send.
  std::vector<Parts> rotated(Parts recvs) const {
    std::vector<Parts> chunks;
    for_each_chunk(recvs, [&](Parts parts) { chunks.push_back(parts); });
    const int world_size = contract_.world_size();
    std::ranges::stable_sort(chunks, {}, [&](Parts parts) {
      const Part& part = parts.front();
      return part.reduce ? 0 : (rank_ - part.peer + world_size) % world_size;
    });
    return chunks;
  }

  void list_events() {
    for (const Part& p : sends_) events_.push_back({p.chunk, p.step, Event::kSend});
    for (const Part& p : recvs_) {
      events_.push_back({p.chunk, p.step, p.reduce ? Event::kAdd : Event::kCopy});
    }
    const auto key = [](const Event& e) { return std::tuple(e.chunk, e.step, e.kind); };
    std::ranges::sort(events_, {}, key);
    const auto again = std::ranges::unique(events_, {}, key);
    events_.erase(again.begin(), again.end());
    for (int e = 0; e < static_cast<int>(events_.size()); ++e) {
      const int number = events_[e].chunk;
      if (chunks_.empty() || chunks_.back().number != number) {
        chunks_.push_back({.number = number,
                           .is_output = contract_.promises(rank_, number),
                           .value = {},
                           .next_event = e});
        if (contract_.holds_before(rank_, number)) chunks_.back().value = {Location::kInput};
      }
      if (events_[e].kind != Event::kSend) chunks_.back().last_received = e;
    }
  }

  // What is known of a chunk that this rank sends or receives; null for another.
  Chunk* find(int number) {
    if (chunks_.empty()) return nullptr;
    const int place = number - chunks_.front().number;  // if it has all chunks in between
    if (place >= 0 && place < std::ssize(chunks_) && chunks_[place].number == number) {
      return &chunks_[place];
    }
    const auto found = std::ranges::lower_bound(chunks_, number, {}, &Chunk::number);
    return found != chunks_.end() && found->number == number ? &*found : nullptr;
  }
  Chunk& chunk(int number) { return *find(number); }

  bool is_of(int event, const Chunk& chunk) const {
    return event < static_cast<int>(events_.size()) && events_[event].chunk == chunk.number;
  }
  // The chunk's next event, or null.
  const Event* upcoming(const Chunk& chunk) const {
    return is_of(chunk.next_event, chunk) ? &events_[chunk.next_event] : nullptr;
  }
  bool is_needed(const Chunk& chunk) const {
    const Event* next = upcoming(chunk);
    return next != nullptr && next->kind != Event::kCopy;
  }
  // A chunk that begins here and remains as it is: the first to send it stores it too.
  static bool stays(const Chunk& chunk) {
    return chunk.is_output && chunk.value.kind == Location::kInput &&
           chunk.next_event > chunk.last_received;
  }

  std::vector<Reader> readers(Parts sends) const {
    std::vector<Reader> to;
    for (const Part& send : sends) to.push_back({send.peer, send.message, -1});
    return to;
  }

  void add_send(Parts sends) {
    Chunk& chunk = this->chunk(sends.front().chunk);
    const int step = sends.front().step;
    if (chunk.value.kind == Location::kNowhere) {
      throw PlanError(describe_place(rank_, step) + "sends chunk " + std::to_string(chunk.number) +
                      " before it has it");
    }
    Action action;
    action.chunk = chunk.number;
    action.own = chunk.value;
    if (stays(chunk)) action.store = {Location::kOutput};
    action.to = readers(sends);
    action.send_step = step;
    ++chunk.next_event;
    if (action.store.kind != Location::kNowhere) chunk.value = action.store;
    if (action.own.kind == Location::kScratch) {
      action.last_use = !is_needed(chunk);
      if (action.last_use) free(chunk);
      use_scratch(step);
    }
    if (action.own.kind == Location::kInput && is_reduction(contract_.collective()))
      use_scratch(step);
    draft_.actions.push_back(std::move(action));
  }

  void add_recv(Parts recvs) {
    Chunk& chunk = this->chunk(recvs.front().chunk);
    const int step = recvs.front().step;
    Action action;
    action.chunk = chunk.number;
    action.reduce = recvs.front().reduce;
    action.recv_step = step;
    for (const Part& recv : recvs) action.from.push_back({recv.peer, recv.message, -1, -1});
    if (action.reduce) {
      action.own = chunk.value;
      if (action.own.kind == Location::kNowhere) {
        throw PlanError(describe_place(rank_, step) + "adds to chunk " +
                        std::to_string(chunk.number) + " before it has it");
      }
      draft_.added[step] += static_cast<int>(recvs.size());
      draft_.last_adding_step = std::max(draft_.last_adding_step, step);
    } else {
      const Event* before = chunk.next_event > 0 ? &events_[chunk.next_event - 1] : nullptr;
      action.aside = before != nullptr && before->chunk == chunk.number && before->step == step;
    }
    ++chunk.next_event;
    note_scratch(action, chunk, step);
    if (const Parts onward = sends_in(step + 1, chunk.number); !onward.empty()) {
      action.to = readers(onward);
      action.send_step = step + 1;
      chunk.sent_early = step + 1;
      ++chunk.next_event;
    }
    const bool is_kept = upcoming(chunk) == nullptr && chunk.is_output;
    if (is_kept || is_needed(chunk)) action.store = new_location(chunk, action.own);
    if (action.own.kind == Location::kScratch && action.store != action.own) {
      free_scratch_.push_back(action.own.index);
    }
    chunk.value = action.store;
    draft_.actions.push_back(std::move(action));
  }

  Parts sends_in(int step, int chunk) const {
    const auto [begin, end] =
        std::ranges::equal_range(sends_, std::pair(step, chunk), {},
                                 [](const Part& p) { return std::pair(p.step, p.chunk); });
    return {begin, end};
  }

  Location new_location(const Chunk& chunk, const Location& own) {
    if (chunk.is_output) return {Location::kOutput};
    if (own.kind == Location::kScratch) return own;
    if (free_scratch_.empty()) return {Location::kScratch, draft_.num_scratch++};
    const int index = free_scratch_.back();
    free_scratch_.pop_back();
    return {Location::kScratch, index};
  }
  void free(Chunk& chunk) {
    free_scratch_.push_back(chunk.value.index);
    chunk.value = {};
  }

  void use_scratch(int step) {
    draft_.last_scratch_step = std::max(draft_.last_scratch_step, step);
  }

  // What comes in scratch where messages do not come in slots, and how long it stays there. The
  // chunk's next event is the one after this receive.
  void note_scratch(const Action& action, const Chunk& chunk, int step) {
    const bool in_scratch = action.reduce || action.aside || !chunk.is_output;
    if (!in_scratch) return;
    draft_.arriving[step] += static_cast<int>(action.from.size());
    if (!action.reduce) use_scratch(step);
    if (chunk.is_output) return;
    int last = step;
    for (int e = chunk.next_event; is_of(e, chunk); ++e) {
      if (events_[e].kind == Event::kCopy) break;
      last = events_[e].step;
      if (events_[e].kind == Event::kAdd) break;
    }
    if (last == step) return;
    draft_.held.push_back({step, last});
    use_scratch(last);
  }

  const int rank_;
  const std::vector<Part> sends_, recvs_;
  const Contract& contract_;
  std::vector<Event> events_;  // by chunk
  std::vector<Chunk> chunks_;  // by their numbers
  std::vector<int> free_scratch_;
  Draft draft_;
};

}  // namespace

Draft draft(const Contract& contract, const Plan& plan, int rank) {
  return Drafting(contract, plan, rank).run();
}

}  // namespace ringcomm
