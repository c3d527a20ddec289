// How few bytes travel eagerly: without a fence or a barrier between data and flags.
//
// Each rank has inboxes at every other rank, and writes there what is for that rank. Data travel in
// words of 8 bytes, 4 of them data and 4 the number of the call. A word is written and read as one,
// so that whoever finds the number of this call finds its data, too, and nothing else has to be
// ordered. That takes twice the bytes and one trip, where a flag behind the data takes two.
//
// A message is cut into packs of 16 bytes. They are dealt to the lanes in runs of the same length,
// whatever kernel it is: a word always belongs to the same lane, which numbers its calls by itself,
// so that no number is met twice within four billion calls. Each thread of a block sends packs and
// awaits the same ones of the other ranks.
//
// Invariant: inboxes take turns, and what call s + 2 writes is where call s was. Whoever begins it
// has taken something of everybody in call s + 1, which nobody begins before it is done with call
// s. So nobody still waits for what is overwritten. For that, a message has at least one pack, even
// if there are no data in it. (Low-latency protocols of this kind are described in "Demystifying
// NCCL", Hu et al., 2025; shm/exchange.h has the same two turns.)
//
// Plain C++, as lane.h; of the machine it needs thread(), num_threads(), any(), gives_up(),
// waited() and
//
//   put(word, value)          writes a word of any rank's memory, and
//   look(word)                reads one of this rank's, each as one and in no order
#pragma once

#include <cstddef>
#include <cstdint>

#include "fused/job.h"
#include "fused/lane.h"
#include "reduce/device_share.h"

namespace ringcomm::fused {

template <typename Machine>
class Inboxes {
 public:
  RINGCOMM_DEVICE Inboxes(Machine& machine, const Job& job, int lane)
      : machine_(machine), job_(job), lane_(lane), call_(next(calls())) {}

  // visit(pack) for this thread's of so many packs, as long as it returns true. Returns whether it
  // did.
  template <typename Visit>
  RINGCOMM_DEVICE bool each_pack(std::size_t count, Visit&& visit) const {
    const std::size_t run = job_.layout.eager_packs;
    for (std::size_t first = lane_ * run; first < count; first += job_.num_lanes * run) {
      const std::size_t end = first + run < count ? first + run : count;
      for (std::size_t p = first + machine_.thread(); p < end; p += machine_.num_threads()) {
        if (!visit(p)) return false;
      }
    }
    return true;
  }

  RINGCOMM_DEVICE void send(int peer, std::size_t p, const Pack& pack) {
    Word* const to = words(peer, job_.rank, p);
    RINGCOMM_UNROLL
    for (int w = 0; w < kWords; ++w) {
      machine_.put(to[w], static_cast<Word>(call_) << 32 | pack.words[w]);
    }
  }

  // False: the wait was given up.
  RINGCOMM_DEVICE bool receive(int peer, std::size_t p, Pack& pack) {
    Word* const from = words(job_.rank, peer, p);
    RINGCOMM_UNROLL
    for (int w = 0; w < kWords; ++w) {
      Word word = machine_.look(from[w]);
      for (std::uint32_t spins = 0; word >> 32 != call_; ++spins) {
        if (machine_.gives_up(spins, peer)) return false;
        word = machine_.look(from[w]);
      }
      pack.words[w] = static_cast<std::uint32_t>(word);
    }
    machine_.waited();
    return true;
  }

  // All threads of the block, `came` if this one has received all it awaited. Whether all have.
  RINGCOMM_DEVICE bool end(bool came) {
    if (machine_.any(!came)) return false;
    if (machine_.thread() == 0) calls() = call_;
    return true;
  }

 private:
  static constexpr int kWords = static_cast<int>(kPackBytes / sizeof(std::uint32_t));

  RINGCOMM_DEVICE std::uint32_t& calls() const {
    std::byte* const memory = job_.memory[job_.rank];
    return *reinterpret_cast<std::uint32_t*>(memory + job_.layout.eager_calls_at(lane_));
  }
  // 0 is what inboxes hold at first.
  RINGCOMM_DEVICE static std::uint32_t next(std::uint32_t call) {
    return call == ~std::uint32_t{0} ? 2 : call + 1;
  }
  RINGCOMM_DEVICE Word* words(int at, int from, std::size_t pack) const {
    return reinterpret_cast<Word*>(job_.memory[at] + job_.layout.inbox_at(call_ % kInboxes, from)) +
           pack * kWords;
  }

  Machine& machine_;
  const Job& job_;
  const int lane_;
  const std::uint32_t call_;
};

}  // namespace ringcomm::fused
