// The eager protocol: a collective of few bytes is one exchange through gpu/fused/inboxes.h,
// whatever its plan is.
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
// time. Sums are added in rank order, with one rounding. The pieces of a job are the collective's
// blocks (core/chunks.h): one, or one for each rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/fused/inboxes.h"
#include "gpu/fused/job.h"
#include "reduce/device_share.h"

namespace ringcomm::fused {

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
    typename V::T results[V::kCount]{};
    const auto all_ranks = [](int) { return true; };
    const bool came = inboxes_.receive_all(p, all_ranks, [&](int rank, const Pack& received) {
      const Pack pack = rank == job_.rank ? load(own, p) : received;
      typename V::T values[V::kCount];
      V::load(values, pack, args_);
      RINGCOMM_UNROLL
      for (int i = 0; i < V::kCount; ++i) {
        results[i] = rank == 0 ? values[i] : V::combine(results[i], values[i], args_);
      }
    });
    if (!came) return false;
    finish<op>(results, args_);
    const Pack sum = V::store(results, args_);
    if (job_.two_hops) sums_.send_all(p, sum);
    own.store(p, sum);
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
