// The fused kernel's source on the host: a thread for each thread of a block.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fused/eager.h"
#include "fused/job.h"
#include "fused/lane.h"
#include "fused/share.h"
#include "happens_before.h"
#include "reduce/device_table.h"

namespace fused_blocks {

using namespace ringcomm;
using fused::Job;
using fused::Layout;
using fused::Why;

// By kernel_key(): what nvcc makes kernels of.
class Machine;
struct Share {
  void (*carry_out)(const DeviceArguments&, bool moves, const Worker&) = nullptr;
  bool (*run_eager)(Machine&, const Job&, int lane) = nullptr;
};
template <DType dtype, ReduceOp op>
bool run_eager(Machine& machine, const Job& job, int lane);

template <int... keys>
constexpr std::array<Share, sizeof...(keys)> make_shares(std::integer_sequence<int, keys...>) {
  const auto of = []<int key>(std::integral_constant<int, key>) -> Share {
    constexpr auto dtype = static_cast<DType>(key / kNumReduceOps);
    constexpr auto op = static_cast<ReduceOp>(key % kNumReduceOps);
    if constexpr (is_kernel(dtype, op)) {
      return {fused::carry_out_share<dtype, op>, run_eager<dtype, op>};
    } else {
      return {};
    }
  };
  return {of(std::integral_constant<int, keys>())...};
}

inline Share find_share(const Reduction& reduction) {
  static constexpr auto kShares =
      make_shares(std::make_integer_sequence<int, kNumDTypes * kNumReduceOps>());
  const KernelKey key = kernel_key(reduction.dtype, effective_op(reduction));
  return kShares[static_cast<int>(key.dtype) * kNumReduceOps + static_cast<int>(key.op)];
}

// What is to be shown of a run.
struct Proof {
  explicit Proof(int num_threads) : record(num_threads) {}

  happens_before::Record record;
  std::optional<Why> left_out;  // orders nothing, though it is waited for
  bool flags_order = true;
};

// What the threads of a block share.
struct Block {
  Block(const DeviceArguments& told, int num_threads, int first_thread)
      : arguments(told), first_thread(first_thread) {
    pthread_barrier_init(&barrier, nullptr, num_threads);
  }
  ~Block() { pthread_barrier_destroy(&barrier); }

  void meet() { pthread_barrier_wait(&barrier); }

  pthread_barrier_t barrier;
  std::atomic<bool> raised{false};
  DeviceArguments arguments;
  const int first_thread;  // in the proof
};

class Machine {
 public:
  Machine(Block& block, const Job& job, Share share, int lane, int thread, int num_threads,
          Proof* proof, std::uint64_t seed)
      : block_(block),
        job_(job),
        share_(share),
        lane_(lane),
        thread_(thread),
        num_threads_(num_threads),
        proof_(proof),
        random_(static_cast<std::minstd_rand::result_type>(seed)) {}

  int thread() const { return thread_; }
  int num_threads() const { return num_threads_; }
  DeviceArguments& arguments() { return block_.arguments; }

  void sync(Why why) {
    delay();
    ++num_barriers_;
    const bool orders = proof_ != nullptr && proof_->left_out != why;
    if (orders) proof_->record.arrive(&block_, num_barriers_, self());
    block_.meet();
    if (orders) proof_->record.leave(&block_, num_barriers_, self());
  }
  bool any(bool value, Why why) {
    if (value) block_.raised.store(true, std::memory_order_relaxed);
    sync(why);
    const bool raised = block_.raised.load(std::memory_order_relaxed);
    block_.meet();  // before anybody raises it anew
    return raised;
  }

  fused::Progress acquire(fused::Progress& flag, Why why) {
    const auto value = std::atomic_ref(flag).load(std::memory_order_acquire);
    if (proof_ != nullptr && proof_->left_out != why) proof_->record.acquire(&flag, self());
    return value;
  }
  void release(fused::Progress& flag, fused::Progress value) {
    delay();
    if (proof_ != nullptr) proof_->record.release(&flag, self(), proof_->flags_order);
    std::atomic_ref(flag).store(value, std::memory_order_release);
  }

  void put(fused::Word& word, fused::Word value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  }
  fused::Word look(fused::Word& word) {
    return std::atomic_ref(word).load(std::memory_order_relaxed);
  }

  bool gives_up(std::uint32_t spins, int peer) {
    if (spins > 3) waits_for().store(peer + 1, std::memory_order_relaxed);
    sched_yield();
    return std::atomic_ref(job_.control->gives_up).load(std::memory_order_relaxed) != 0;
  }
  void waited() { waits_for().store(0, std::memory_order_relaxed); }

  void carry_out(bool moves) {
    delay();
    if (proof_ != nullptr) note_accesses(moves);
    share_.carry_out(
        block_.arguments, moves,
        {0, 1, static_cast<std::size_t>(thread_), static_cast<std::size_t>(num_threads_)});
  }

 private:
  int self() const { return block_.first_thread + thread_; }
  std::atomic_ref<std::uint32_t> waits_for() {
    return std::atomic_ref(job_.control->waits_for[lane_]);
  }

  // So that threads come to everything in other orders.
  void delay() {
    if (random_() % 16 == 0) sched_yield();
  }

  // Which thread touches which byte does not matter to the order of blocks and of steps: here each
  // touches a share of its own.
  void note_accesses(bool moves) {
    const DeviceArguments& args = block_.arguments;
    const std::size_t nbytes = args.partition.count * (moves ? 1 : job_.unit_nbytes);
    const std::size_t begin = nbytes * thread_ / num_threads_;
    const std::size_t end = nbytes * (thread_ + 1) / num_threads_;
    for (int k = 0; k < args.num_inputs; ++k) {
      proof_->record.access(args.inputs[k] + begin, end - begin, false, self(), "data");
    }
    for (int k = 0; k < args.num_outputs; ++k) {
      proof_->record.access(args.outputs[k] + begin, end - begin, true, self(), "data");
    }
  }

  Block& block_;
  const Job& job_;
  const Share share_;
  const int lane_, thread_, num_threads_;
  Proof* const proof_;
  std::minstd_rand random_;
  std::uint64_t num_barriers_ = 0;
};

template <DType dtype, ReduceOp op>
bool run_eager(Machine& machine, const Job& job, int lane) {
  return fused::EagerSum<dtype, op, Machine>(machine, job, lane).run();
}

inline bool run_lane(Machine& machine, const Job& job, Share share, int lane) {
  if (job.script.num_steps > 0) return fused::Lane(machine, job, lane).run();
  if (job.gathers) return fused::EagerGather<Machine>(machine, job, lane).run();
  return share.run_eager(machine, job, lane);
}

// All lanes of a job, until they have ended. False: a wait was given up.
inline bool run_lanes(const Job& job, Share share, int threads_per_block, Proof* proof,
                      int first_thread, std::uint64_t seed) {
  std::deque<Block> blocks;
  for (int l = 0; l < job.num_lanes; ++l) {
    blocks.emplace_back(job.told, threads_per_block, first_thread + l * threads_per_block);
  }
  std::atomic<bool> came{true};
  std::vector<std::thread> running;
  for (int l = 0; l < job.num_lanes; ++l) {
    for (int t = 0; t < threads_per_block; ++t) {
      running.emplace_back([&, l, t] {
        const std::uint64_t own = seed + l * threads_per_block + t;
        Machine machine(blocks[l], job, share, l, t, threads_per_block, proof, own);
        if (!run_lane(machine, job, share, l)) came = false;
      });
    }
  }
  for (std::thread& thread : running) thread.join();
  return came;
}

}  // namespace fused_blocks
