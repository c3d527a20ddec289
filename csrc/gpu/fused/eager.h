// The eager protocol: a collective of few bytes is one exchange through inboxes, whatever its plan
// is.
//
//   all-reduce      every rank sends its input to every other one, and adds all of them
//   reduce-scatter  every rank sends each other one that rank's piece, and adds those of its own
//   all-gather      every rank sends its piece to every other one
//
// A somewhat larger all-reduce takes two hops: a reduce-scatter and an all-gather of a piece for
// each rank, so that a rank sends 2(n-1)/n of the buffer and not n-1 buffers. A thread sends the
// sum of a pack as soon as it has it. Every wait ends: ranks send what the first hop awaits before
// they await anything, and they send what the second hop awaits when the first has arrived.
//
// Each rank begins with the next one, so that they do not all write to the same rank at the same
// time. Sums are added in pairs of ranks, with one rounding. The pieces of a job are the
// collective's blocks (core/chunks.h): one, or one for each rank.
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

// The inboxes of a rank: no fence or barrier is between data and flags.
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

// Loads and stores the packs of a piece. The last pack may be shorter, and nothing need be aligned.
class PieceOfBytes {
 public:
  RINGCOMM_DEVICE PieceOfBytes(const Piece& piece, std::size_t element_nbytes)
      : piece_(piece), nbytes_(piece.count * element_nbytes) {}

  RINGCOMM_DEVICE std::size_t num_packs() const { return fused::num_packs(nbytes_); }

  RINGCOMM_DEVICE Pack load(std::size_t p) const {
    const std::byte* const from = piece_.input + p * kPackBytes;
    const std::size_t nbytes = left(p);
    if (is_whole(from, nbytes)) return *reinterpret_cast<const Pack*>(from);
    Pack pack{};
    RINGCOMM_UNROLL
    for (std::size_t i = 0; i < kPackBytes; ++i) {
      const auto byte = i < nbytes ? static_cast<std::uint32_t>(from[i]) : 0;
      pack.words[i / 4] |= byte << 8 * (i % 4);
    }
    return pack;
  }

  RINGCOMM_DEVICE void store(std::size_t p, const Pack& pack) const {
    std::byte* const to = piece_.output + p * kPackBytes;
    const std::size_t nbytes = left(p);
    if (is_whole(to, nbytes)) {
      *reinterpret_cast<Pack*>(to) = pack;
      return;
    }
    RINGCOMM_UNROLL
    for (std::size_t i = 0; i < kPackBytes; ++i) {
      if (i < nbytes) to[i] = static_cast<std::byte>(pack.words[i / 4] >> 8 * (i % 4));
    }
  }

 private:
  RINGCOMM_DEVICE std::size_t left(std::size_t p) const {
    const std::size_t behind = nbytes_ - p * kPackBytes;
    return behind < kPackBytes ? behind : kPackBytes;
  }
  RINGCOMM_DEVICE static bool is_whole(const std::byte* at, std::size_t nbytes) {
    return nbytes == kPackBytes && reinterpret_cast<std::uintptr_t>(at) % kPackBytes == 0;
  }

  const Piece& piece_;
  const std::size_t nbytes_;
};

// An all-reduce (of one piece, or in two hops) or a reduce-scatter.
template <DType dtype, ReduceOp op, typename Machine>
class EagerSum {
 public:
  RINGCOMM_DEVICE EagerSum(Machine& machine, const Job& job, int lane)
      : args_(machine.arguments()),
        job_(job),
        inboxes_(machine, job, lane),
        sums_(machine, job, lane, /*hop=*/1) {}

  // All threads of the block call this. False: a wait was given up.
  RINGCOMM_DEVICE bool run() {
    if (job_.num_pieces == 1) {
      send_to_all();
    } else {
      for (int distance = 1; distance < job_.layout.world_size; ++distance) {
        send_to(job_.at_distance(distance));
      }
    }
    const PieceOfBytes own = piece(own_piece());
    bool came = inboxes_.each_pack(own.num_packs(), [&](std::size_t p) { return reduce(own, p); });
    if (job_.two_hops) came = came && gather();
    return inboxes_.end(came);
  }

 private:
  using V = Values<dtype, op>;
  // Packs of 8-bit types have values for all registers that there are.
  static constexpr bool kSumsInRegisters = V::kCount <= 8;

  RINGCOMM_DEVICE int own_piece() const { return job_.num_pieces == 1 ? 0 : job_.rank; }
  RINGCOMM_DEVICE PieceOfBytes piece(int at) const {
    return PieceOfBytes(job_.pieces[at], job_.element_nbytes);
  }

  RINGCOMM_DEVICE void send_to_all() {
    const PieceOfBytes sent = piece(0);
    inboxes_.each_pack(sent.num_packs(), [&](std::size_t p) {
      inboxes_.send_all(p, load(sent, p));
      return true;
    });
  }

  // Sends that rank its piece.
  RINGCOMM_DEVICE void send_to(int peer) {
    const PieceOfBytes sent = piece(peer);
    inboxes_.each_pack(sent.num_packs(), [&](std::size_t p) {
      inboxes_.send(peer, p, load(sent, p));
      return true;
    });
  }

  // A pack as it is sent: premultiplied if the reduction wants that.
  RINGCOMM_DEVICE Pack load(const PieceOfBytes& from, std::size_t p) const {
    const Pack pack = from.load(p);
    if (!job_.premultiplies) return pack;
    typename V::T values[V::kCount];
    V::load(values, pack, args_);
    scale<op, V>(values, 0, args_);
    return V::store(values, args_);
  }

  RINGCOMM_DEVICE bool reduce(const PieceOfBytes& own, std::size_t p) {
    typename V::T waiting[levels_of(kMaxRanks)][V::kCount], sum[V::kCount];
    const auto all_ranks = [](int) { return true; };
    const bool came = inboxes_.receive_all(p, all_ranks, [&](int rank, const Pack& received) {
      const Pack pack = rank == job_.rank ? load(own, p) : received;
      V::load(sum, pack, args_);
      const bool is_last = rank + 1 == job_.layout.world_size;
      add_in_pairs<V, kSumsInRegisters>(waiting, rank, is_last, sum, args_);
    });
    if (!came) return false;
    finish<op>(sum, args_);
    const Pack pack = V::store(sum, args_);
    if (job_.two_hops) sums_.send_all(p, pack);
    own.store(p, pack);
    return true;
  }

  // The second hop. A thread has the same packs of all pieces, so it has read what it overwrites.
  // No piece is larger than the first.
  RINGCOMM_DEVICE bool gather() {
    return sums_.each_pack(piece(0).num_packs(), [&](std::size_t p) {
      const auto has = [&](int rank) { return p < piece(rank).num_packs(); };
      return sums_.receive_all(p, has, [&](int rank, const Pack& pack) {
        if (rank != job_.rank) piece(rank).store(p, pack);
      });
    });
  }

  const DeviceArguments& args_;
  const Job& job_;
  Inboxes<Machine> inboxes_, sums_;
};

// An all-gather of any type.
template <typename Machine>
class EagerGather {
 public:
  RINGCOMM_DEVICE EagerGather(Machine& machine, const Job& job, int lane)
      : job_(job), inboxes_(machine, job, lane) {}

  // All threads of the block call this. False: a wait was given up.
  RINGCOMM_DEVICE bool run() {
    const PieceOfBytes own = piece(job_.rank);
    const bool stays = job_.pieces[job_.rank].input == job_.pieces[job_.rank].output;
    inboxes_.each_pack(own.num_packs(), [&](std::size_t p) {
      const Pack pack = own.load(p);
      inboxes_.send_all(p, pack);
      if (!stays) own.store(p, pack);
      return true;
    });
    const auto come = [&](std::size_t p) {
      const auto has = [&](int rank) { return p < piece(rank).num_packs(); };
      return inboxes_.receive_all(p, has, [&](int rank, const Pack& pack) {
        if (rank != job_.rank) piece(rank).store(p, pack);
      });
    };
    return inboxes_.end(inboxes_.each_pack(most_packs(), come));
  }

 private:
  RINGCOMM_DEVICE PieceOfBytes piece(int at) const {
    return PieceOfBytes(job_.pieces[at], job_.element_nbytes);
  }

  RINGCOMM_DEVICE std::size_t most_packs() const {
    std::size_t most = 0;
    for (int r = 0; r < job_.layout.world_size; ++r) {
      const std::size_t its = piece(r).num_packs();
      most = its > most ? its : most;
    }
    return most;
  }

  const Job& job_;
  Inboxes<Machine> inboxes_;
};

}  // namespace ringcomm::fused
