// A thread of the host as fused/lane.h wants the thread of a block.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <random>

#include "fused_blocks.h"
#include "reduce/partition.h"

namespace fused_blocks {

using namespace ringcomm;
using fused::Job;
using fused::Why;

// What the threads of a block share.
struct Block {
  Block(const DeviceArguments& told, int num_threads, int first_thread);
  ~Block();

  void meet() { pthread_barrier_wait(&barrier); }

  pthread_barrier_t barrier;
  std::atomic<bool> raised{false};
  DeviceArguments arguments;
  const int first_thread;  // in the proof
};

using CarryOutShare = void (*)(const DeviceArguments&, bool moves, const Worker&);

class Machine {
 public:
  Machine(Block& block, const Job& job, CarryOutShare carry_out_share, int lane, int thread,
          int num_threads, Proof* proof, std::uint64_t seed);

  int thread() const { return thread_; }
  int num_threads() const { return num_threads_; }
  DeviceArguments& arguments() { return block_.arguments; }

  void sync(Why why);
  bool any(bool value, Why why);

  fused::Progress acquire(fused::Progress& flag, Why why);
  void release(fused::Progress& flag, fused::Progress value);

  void put(fused::Word& word, fused::Word value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  }
  fused::Word look(fused::Word& word) {
    return std::atomic_ref(word).load(std::memory_order_relaxed);
  }

  bool gives_up(std::uint32_t spins, int peer);
  void waited() { waits_for().store(0, std::memory_order_relaxed); }

  void carry_out(bool moves);

 private:
  int self() const { return block_.first_thread + thread_; }
  std::atomic_ref<std::uint32_t> waits_for() {
    return std::atomic_ref(job_.control->waits_for[lane_]);
  }
  void delay();
  void note_accesses(bool moves);

  Block& block_;
  const Job& job_;
  const CarryOutShare carry_out_share_;
  const int lane_, thread_, num_threads_;
  Proof* const proof_;
  std::minstd_rand random_;
  std::uint64_t num_barriers_ = 0;
};

}  // namespace fused_blocks
