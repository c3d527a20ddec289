// The eager way: an all-reduce of few bytes as one exchange, without a fence or a barrier between
// data and flags.
//
// Every rank writes its input into an inbox at every other rank, takes what has come into its own,
// and adds all of it in rank order: one rounding, whatever the plan. Data travel in words of 8
// bytes, 4 of them data and 4 the number of the call. A word is written and read as one, so that
// whoever finds the number of this call finds its data, too, and nothing else has to be ordered.
// That takes twice the bytes and one trip, where a flag behind the data takes two.
//
// A thread block is a lane here, too, with a share of the buffer in packs of 16 bytes; each of its
// threads sends packs and awaits the same ones of the other ranks.
//
// Invariant: inboxes take turns, and what call s + 2 writes is where call s was. Whoever begins it
// has taken something of everybody in call s + 1, which nobody begins before it is done with call
// s. So nobody still waits for what is overwritten. (Low-latency protocols of this kind are
// described in "Demystifying NCCL", Hu et al., 2025; shm/exchange.h has the same two turns.)
//
// Plain C++, as lane.h; of the machine it needs thread(), num_threads(), any(), gives_up(),
// waited(), arguments() and
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

template <DType dtype, ReduceOp op, typename Machine>
class Eager {
 public:
  // The buffer is the job's only piece.
  RINGCOMM_DEVICE Eager(Machine& machine, const Job& job, int lane)
      : machine_(machine), job_(job), lane_(lane) {}

  // All threads of the block. False: a wait was given up.
  RINGCOMM_DEVICE bool run() {
    auto& calls = *reinterpret_cast<std::uint32_t*>(job_.memory[job_.rank] +
                                                    job_.layout.eager_calls_at(lane_));
    // 0 is what inboxes hold at first.
    call_ = calls == ~std::uint32_t{0} ? 2 : calls + 1;
    const std::size_t nbytes = job_.pieces[0].count * job_.element_nbytes;
    const std::size_t num_packs = (nbytes + kPackBytes - 1) / kPackBytes;
    const std::size_t stride = static_cast<std::size_t>(job_.num_lanes) * machine_.num_threads();
    const std::size_t first =
        static_cast<std::size_t>(lane_) * machine_.num_threads() + machine_.thread();
    for (std::size_t p = first; p < num_packs; p += stride) send(p, own(p, nbytes));
    bool came = true;
    for (std::size_t p = first; came && p < num_packs; p += stride) came = reduce(p, nbytes);
    if (machine_.any(!came, Why::kMoved)) return false;
    if (machine_.thread() == 0) calls = call_;
    return true;
  }

 private:
  using V = Values<dtype, op>;
  static constexpr int kWords = static_cast<int>(kPackBytes / sizeof(std::uint32_t));

  RINGCOMM_DEVICE Word* words(int at, int from, std::size_t pack) const {
    return reinterpret_cast<Word*>(job_.memory[at] + job_.layout.inbox_at(call_ % kInboxes, from)) +
           pack * kWords;
  }

  // Bytes of a pack that there are.
  RINGCOMM_DEVICE static std::size_t left(std::size_t pack, std::size_t nbytes) {
    const std::size_t behind = nbytes - pack * kPackBytes;
    return behind < kPackBytes ? behind : kPackBytes;
  }

  // What is cut short, or not aligned, goes byte by byte.
  RINGCOMM_DEVICE static bool is_whole(const std::byte* at, std::size_t nbytes) {
    return nbytes == kPackBytes && reinterpret_cast<std::uintptr_t>(at) % kPackBytes == 0;
  }
  RINGCOMM_DEVICE static Pack load(const std::byte* from, std::size_t nbytes) {
    if (is_whole(from, nbytes)) return *reinterpret_cast<const Pack*>(from);
    Pack pack{};
    RINGCOMM_UNROLL
    for (std::size_t i = 0; i < kPackBytes; ++i) {
      const auto byte = i < nbytes ? static_cast<std::uint32_t>(from[i]) : 0;
      pack.words[i / 4] |= byte << 8 * (i % 4);
    }
    return pack;
  }
  RINGCOMM_DEVICE static void store(std::byte* to, std::size_t nbytes, const Pack& pack) {
    if (is_whole(to, nbytes)) {
      *reinterpret_cast<Pack*>(to) = pack;
      return;
    }
    RINGCOMM_UNROLL
    for (std::size_t i = 0; i < kPackBytes; ++i) {
      if (i < nbytes) to[i] = static_cast<std::byte>(pack.words[i / 4] >> 8 * (i % 4));
    }
  }

  // As it is sent: premultiplied where that is wanted.
  RINGCOMM_DEVICE Pack own(std::size_t p, std::size_t nbytes) {
    const Pack pack = load(job_.pieces[0].input + p * kPackBytes, left(p, nbytes));
    if (!job_.premultiplies) return pack;
    const DeviceArguments& args = machine_.arguments();
    typename V::T values[V::kCount];
    V::load(values, pack, args);
    scale<op>(values, 0, args);
    return V::store(values, args);
  }

  RINGCOMM_DEVICE void send(std::size_t p, const Pack& pack) {
    for (int peer = 0; peer < job_.layout.world_size; ++peer) {
      if (peer == job_.rank) continue;
      Word* const to = words(peer, job_.rank, p);
      RINGCOMM_UNROLL
      for (int w = 0; w < kWords; ++w) {
        machine_.put(to[w], static_cast<Word>(call_) << 32 | pack.words[w]);
      }
    }
  }

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

  RINGCOMM_DEVICE bool reduce(std::size_t p, std::size_t nbytes) {
    const DeviceArguments& args = machine_.arguments();
    typename V::T results[V::kCount]{};
    for (int r = 0; r < job_.layout.world_size; ++r) {
      Pack pack;
      if (r == job_.rank) {
        pack = own(p, nbytes);
      } else if (!receive(r, p, pack)) {
        return false;
      }
      typename V::T values[V::kCount];
      V::load(values, pack, args);
      RINGCOMM_UNROLL
      for (int i = 0; i < V::kCount; ++i) {
        results[i] = r == 0 ? values[i] : V::combine(results[i], values[i], args);
      }
    }
    finish<op>(results, args);
    store(job_.pieces[0].output + p * kPackBytes, left(p, nbytes), V::store(results, args));
    return true;
  }

  Machine& machine_;
  const Job& job_;
  const int lane_;
  std::uint32_t call_ = 0;
};

}  // namespace ringcomm::fused
