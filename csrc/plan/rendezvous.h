// The plans of all ranks, carried out on symbols instead of data: the execution under rendezvous on
// which plan/verify.h rests its proof.
//
// First the sends of all plans are paired with their receives. Between two ranks messages arrive in
// the order in which they were sent, so the k-th send from p to q, counted over all steps, belongs
// to the k-th receive of q from p. Nothing else identifies a message.
//
// A symbol is a number that stands for a value, equal numbers for equal values. What a value is
// depends on the question: the set of ranks whose contributions are in it (plan/verify.h), or the
// sum that it is, with its parentheses (plan/bitwise.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

// A send and the receive it belongs to.
struct Pairing {
  int sender, send_step;
  int receiver, recv_step;
  int first_chunk, num_chunks;
  bool reduce;
};

struct Traffic {
  int num_chunks = 0;
  std::vector<Pairing> pairings;
};

// Pairs those transfers for which `followed` is true (it is asked about every send and every
// receive). Throws what check_plan throws, and PlanError for a send without a receive or the
// reverse, a pair with different chunks, and more than 2^24 sends or receives to pair, which take
// 2 GB.
Traffic match(int world_size, const std::function<Plan(int rank)>& plan_of,
              const std::function<bool(const Transfer&)>& followed);

using Symbol = std::uint32_t;
inline constexpr Symbol kNothing = 0;  // what is unspecified

// A chunk that a rank has received in its current step.
struct Arrival {
  int chunk;
  int sender;
  bool adds;
  Symbol symbol;
};

// What a rank adds to a chunk in one step: all these arrivals, which are in the order of their
// senders, to what it holds.
struct Addition {
  int rank, step, chunk;
  Symbol held;
  std::span<const Arrival> added;
};

class Symbols {
 public:
  virtual ~Symbols() = default;

  // A rank's own contribution.
  virtual Symbol input(int rank) = 0;
  // Throws PlanError for what must not be added.
  virtual Symbol sum(const Addition& addition) = 0;
};

// Chunks that are followed: all of them, or some.
class Followed {
 public:
  static Followed all(int num_chunks) { return Followed(num_chunks, {}); }
  // At least one; ascending, each once.
  static Followed some(std::vector<int> chunks) {
    const auto size = static_cast<int>(chunks.size());
    return Followed(size, std::move(chunks));
  }

  int size() const { return size_; }
  // The place-th of them.
  int chunk(int place) const { return chunks_.empty() ? place : chunks_[place]; }
  // The places of those among the chunks first, ..., last-1 begin here, for either end.
  // The first place whose chunk is `chunk` or comes after it; size() if none does.
  int place(std::int64_t chunk) const;

 private:
  Followed(int size, std::vector<int> chunks) : size_(size), chunks_(std::move(chunks)) {}

  int size_;
  std::vector<int> chunks_;  // empty: all
};

class Rendezvous {
 public:
  // Only followed chunks are given contents. All that it is given must outlive it.
  Rendezvous(const Contract& contract, const std::vector<Pairing>& pairings,
             const Followed& followed, Symbols& symbols);

  // Carries out every transfer. Throws PlanError for a deadlock, for a transfer of something
  // unspecified, for chunks of two ranks of which one overwrites the other, and what the symbols
  // refuse to add.
  void run();

  // What a rank holds now in the place-th followed chunk; kNothing where that is unspecified.
  Symbol contents(int rank, int place) const;

 private:
  struct Rank {
    std::vector<int> pairings;      // indices of its sends and receives, in the order of its steps
    int begin = 0, end = 0;         // the part of `pairings` that is the current step
    int unfinished = 0;             // transfers of the current step
    std::vector<Arrival> arrivals;  // received in the current step
  };

  int step_of(int rank, int pairing) const;
  int current_step(int rank) const;
  void begin_step(int rank);
  void transfer(int pairing);
  void finish_step(int rank);
  bool is_barrier() const { return contract_.collective() == Collective::kBarrier; }
  std::string describe_deadlock(int rank) const;

  std::size_t index(int rank, int place) const {
    return static_cast<std::size_t>(rank) * followed_.size() + place;
  }
  void write(int rank, int chunk, Symbol symbol);

  const Contract& contract_;
  const std::vector<Pairing>& pairings_;
  const Followed& followed_;
  Symbols& symbols_;
  std::vector<Symbol> inputs_;  // by rank
  // By index: of all, or where those are too many of what has been written.
  std::vector<Symbol> contents_;
  std::unordered_map<std::size_t, Symbol> written_;
  std::vector<Rank> ranks_;
  std::vector<bool> begun_;    // by pairing: one of its ends has begun its step
  std::vector<bool> done_;     // by pairing
  std::vector<int> finished_;  // ranks whose current step is done
};

}  // namespace ringcomm
