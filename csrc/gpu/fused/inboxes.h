// Eager transfer of few bytes: there is no fence or barrier between data and flags.
//
// Each rank has inboxes at every other rank, and writes its data for that rank there. Data travel
// in words of 8 bytes, 4 of them data and 4 the number of the call. A word is written and read as
// one, so a reader that finds the number of this call also finds its data, and nothing else has to
// be ordered. This takes twice the bytes and one trip; a flag behind the data takes two trips. One
// instruction moves two words, and they may arrive apart.
//
// A message is cut into packs of 16 bytes. The lanes get runs of packs of the same length, in every
// kernel: a word always belongs to the same lane, and each lane numbers its calls by itself, so no
// number occurs twice within four billion calls. Each thread of a block sends packs and awaits the
// same packs of the other ranks.
//
// Invariant: inboxes take turns, and call s + 2 writes where call s was. A rank that begins it has
// taken something from every other rank in call s + 1, and no rank begins that call before it is
// done with call s. So no rank still waits for what is overwritten. Therefore a message has at
// least one pack, even if there are no data in it. (Low-latency protocols of this kind are
// described in "Demystifying NCCL", Hu et al., 2025; shm/exchange.h has the same two turns.)
//
// Plain C++, as lane.h; of the machine it needs thread(), num_threads(), any(), aborted(),
// waited() and
//
//   put(to, words)            writes two words of any rank's memory, and
//   look(at)                  reads two of this rank's, each as one and in no order
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/fused/job.h"
#include "gpu/fused/lane.h"
#include "reduce/device_share.h"

namespace ringcomm::fused {

// Calls in two hops have inboxes of their own, one for each hop, and numbers of their own. They
// need no turns, because each hop shows that the inboxes of the other one have been read. A rank
// that begins a call has taken all sums of the call before, and before their senders sent them,
// they had taken all that was sent to them. And a rank sends a sum only when it has received
// something of the same call from every other rank; each of these had ended the call before, and so
// had taken its sums.
template <typename Machine>
class Inboxes {
 public:
  // `hop` is 0, or 1 for the second hop of a job that has two.
  RINGCOMM_DEVICE Inboxes(Machine& machine, const Job& job, int lane, int hop = 0)
      : machine_(machine), job_(job), lane_(lane), hop_(hop), call_(next(calls())) {}

  // Calls visit(pack) for each of this thread's packs, of `count` packs in all, until it returns
  // false. Returns whether it always returned true.
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
    const Word call = static_cast<Word>(call_) << 32;
    RINGCOMM_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      const std::uint32_t* const data = pack.words + 2 * half;
      machine_.put(words(peer, job_.rank, p, half), {call | data[0], call | data[1]});
    }
  }

  // Sends to every other rank, to the next one first.
  RINGCOMM_DEVICE void send_all(std::size_t p, const Pack& pack) {
    for (int distance = 1; distance < job_.layout.world_size; ++distance) {
      send(job_.at_distance(distance), p, pack);
    }
  }

  // Calls receive(rank, pack) in rank order: for each other rank for which awaits(rank) is true,
  // and for this rank without a pack. False: a wait was given up.
  //
  // It looks at the packs of several ranks at once, because this takes no longer than for one.
  template <typename Awaits, typename Receive>
  RINGCOMM_DEVICE bool receive_all(std::size_t p, Awaits&& awaits, Receive&& receive) {
    const int n = job_.layout.world_size;
    for (int first = 0; first < n; first += kLooks) {
      LLPacket found[kLooks][kHalves];
      RINGCOMM_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int peer = first + i;
        if (peer >= n || peer == job_.rank || !awaits(peer)) continue;
        RINGCOMM_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          found[i][half] = machine_.look(words(job_.rank, peer, p, half));
        }
      }
      RINGCOMM_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int peer = first + i;
        if (peer >= n || (peer != job_.rank && !awaits(peer))) continue;
        Pack pack{};
        if (peer != job_.rank && !await(peer, p, found[i], pack)) return false;
        receive(peer, pack);
      }
    }
    return true;
  }

  // All threads of the block call this. `came`: this thread has received all that it awaited.
  // Returns whether all threads have.
  RINGCOMM_DEVICE bool end(bool came) {
    if (machine_.any(!came)) return false;
    if (machine_.thread() == 0) calls() = call_;
    return true;
  }

 private:
  static constexpr int kLooks = 4;
  static constexpr int kHalves = 2;
  static constexpr std::size_t kRow = kEagerUnit / kPackBytes;

  RINGCOMM_DEVICE std::uint32_t& calls() const {
    std::byte* const memory = job_.memory[job_.rank];
    const Layout& layout = job_.layout;
    const std::size_t at =
        job_.two_hops ? layout.hop_calls_at(lane_) : layout.eager_calls_at(lane_);
    return *reinterpret_cast<std::uint32_t*>(memory + at);
  }
  // No call has the number 0: inboxes hold it at first.
  RINGCOMM_DEVICE static std::uint32_t next(std::uint32_t call) {
    return call == ~std::uint32_t{0} ? 2 : call + 1;
  }

  // False: the wait was given up.
  RINGCOMM_DEVICE bool await(int peer, std::size_t p, LLPacket (&found)[kHalves], Pack& pack) {
    RINGCOMM_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      for (std::uint32_t spins = 0; !is_of_this_call(found[half]); ++spins) {
        if (machine_.aborted(spins, peer)) return false;
        found[half] = machine_.look(words(job_.rank, peer, p, half));
      }
      pack.words[2 * half] = static_cast<std::uint32_t>(found[half].first);
      pack.words[2 * half + 1] = static_cast<std::uint32_t>(found[half].second);
    }
    machine_.waited();
    return true;
  }

  RINGCOMM_DEVICE bool is_of_this_call(const LLPacket& words) const {
    return words.first >> 32 == call_ && words.second >> 32 == call_;
  }
  // The first halves of a row of packs lie before the second halves, so that a warp writes each
  // side by side.
  RINGCOMM_DEVICE LLPacket* words(int at, int from, std::size_t pack, int half) const {
    const Layout& layout = job_.layout;
    const std::size_t inbox_at = job_.two_hops
                                     ? layout.hop_inbox_at(hop_, from)
                                     : layout.inbox_at(static_cast<int>(call_ % kInboxes), from);
    std::byte* const inbox = job_.memory[at] + inbox_at;
    return reinterpret_cast<LLPacket*>(inbox) + (pack / kRow * kHalves + half) * kRow + pack % kRow;
  }

  Machine& machine_;
  const Job& job_;
  const int lane_;
  const int hop_;
  const std::uint32_t call_;
};

}  // namespace ringcomm::fused
